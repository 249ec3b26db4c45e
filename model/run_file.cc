// Reads run files: parses the text, then expands the blocks, so that the rest of the program sees a
// plain list of layers. Problems found later refer to the expanded layers; layer_paths maps them
// back to the layer of the block, or to the layer that uses the block, in the file.
#include "model/run_file.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status.h"
#include "model/blocks.h"

namespace cadre {
namespace {

// Enough for models of thousands of layers.
constexpr int64_t kMaxRunFileBytes = 32 << 20;

// The path in the file of a field of an expanded layer; other fields are unchanged.
std::string PathInFile(const std::vector<std::string>& layer_paths, const std::string& field) {
  constexpr absl::string_view kLayers = "model.layer[";
  if (!absl::StartsWith(field, kLayers)) return field;
  const size_t close = field.find(']');
  size_t layer = 0;
  if (close == std::string::npos ||
      !absl::SimpleAtoi(field.substr(kLayers.size(), close - kLayers.size()), &layer) ||
      layer >= layer_paths.size()) {
    return field;
  }
  return layer_paths[layer] + field.substr(close + 1);
}

}  // namespace

absl::Status RunSpecFile::Refuse(const std::vector<Problem>& problems) const {
  std::vector<Problem> in_file = problems;
  for (Problem& problem : in_file) problem.field = PathInFile(layer_paths, problem.field);
  return locations.Refuse(in_file);
}

absl::StatusOr<RunSpecFile> ReadRunSpec(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRunFileBytes));
  return ParseRunSpec(path, text);
}

absl::StatusOr<RunSpecFile> ParseRunSpec(const std::string& path, const std::string& text) {
  RunSpecFile file;
  CADRE_ASSIGN_OR_RETURN(file.locations,
                         ParseTextMessage(path, text, "a run spec in text format", file.spec));
  if (!file.spec.has_model()) return file;
  // These problems already have the paths of the file.
  std::vector<Problem> problems;
  ExpandedModel expanded = ExpandBlocks(file.spec.model(), &problems);
  CADRE_RETURN_IF_ERROR(file.Refuse(problems));
  *file.spec.mutable_model() = std::move(expanded.model);
  file.layer_paths = std::move(expanded.origins);
  return file;
}

}  // namespace cadre
