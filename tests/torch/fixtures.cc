#include "tests/torch/fixtures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

absl::StatusOr<Fixtures> Fixtures::Open(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  return Fixtures(std::move(file));
}

Shape Fixtures::ShapeOf(const std::string& name) const {
  const StoredTensor* tensor = file_.Find(name);
  CHECK(tensor != nullptr) << file_.name() << " has no " << name;
  return tensor->shape;
}

std::vector<float> Fixtures::Read(const std::string& name) {
  std::vector<float> values(ShapeOf(name).elements());
  const absl::Status status = file_.Read(*file_.Find(name), 0, values);
  CHECK(status.ok()) << status;
  return values;
}

std::vector<std::string> Fixtures::NamesUnder(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : file_.tensors()) {
    absl::string_view rest = tensor.name;
    if (absl::ConsumePrefix(&rest, prefix)) names.emplace_back(rest);
  }
  return names;
}

double RelativeDifference(std::span<const float> got, std::span<const float> want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.size()) return kInfinity;
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double of_element = std::abs(1.0 * got[i] - want[i]);
    // A comparison with NaN is false, so NaN must be handled explicitly.
    if (!std::isfinite(of_element)) return kInfinity;
    difference = std::max(difference, of_element);
    largest = std::max(largest, std::abs(1.0 * want[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace cadre
