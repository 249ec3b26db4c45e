// Both flags have the syntax NAME=VALUE,NAME=VALUE. Names of axes and layers are checked later,
// against the model, by the validation of the run file.
#include "cli/pin_flags.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

using NameAndValue = std::pair<std::string, std::string>;

// Splits "a=b,c=d". `wanted` describes the expected text in errors.
absl::StatusOr<std::vector<NameAndValue>> SplitPairs(absl::string_view flag, absl::string_view text,
                                                     absl::string_view wanted) {
  std::vector<NameAndValue> pairs;
  std::set<std::string> names;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " takes ", wanted, ", not '", part, "'"));
    }
    pairs.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    if (!names.insert(pairs.back().first).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " has ", pairs.back().first, " twice"));
    }
  }
  return pairs;
}

}  // namespace

absl::StatusOr<std::vector<v1::MeshAxis>> ParseMesh(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(const auto pairs,
                         SplitPairs("mesh", text, "axes and sizes such as data=4,model=2"));
  std::vector<v1::MeshAxis> mesh;
  for (const auto& [name, value] : pairs) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(value, &size) || size == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--mesh takes a whole number of at least 1 as the size of ", name, ", not '",
                       value, "'"));
    }
    v1::MeshAxis& axis = mesh.emplace_back();
    axis.set_name(name);
    axis.set_size(size);
  }
  return mesh;
}

absl::StatusOr<std::vector<v1::LayerPin>> ParseLayerPins(absl::string_view text) {
  CADRE_ASSIGN_OR_RETURN(
      const auto pairs,
      SplitPairs("layer", text, "layers and how to split them such as fc6=model,conv1=data"));
  std::vector<v1::LayerPin> pins;
  for (const auto& [name, value] : pairs) {
    v1::LayerPin& pin = pins.emplace_back();
    pin.set_layer(name);
    const auto parallelism = EnumFromText<v1::LayerPin::Parallelism>(value);
    if (!parallelism) {
      return absl::InvalidArgumentError(absl::StrCat("--layer: parallelism of '", name, "' is '",
                                                     value,
                                                     "'; give data, model, model-in or domain"));
    }
    pin.set_parallelism(*parallelism);
  }
  return pins;
}

}  // namespace cadre
