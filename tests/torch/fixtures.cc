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
  std::vector<float> values(static_cast<size_t>(ShapeOf(name).elements()));
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
  double apart = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    // Not-a-number compares with nothing; it must not pass for equal.
    if (!std::isfinite(difference)) return kInfinity;
    apart = std::max(apart, difference);
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
  }
  return largest == 0 ? apart : apart / largest;
}

}  // namespace cadre
