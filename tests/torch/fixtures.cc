#include "tests/torch/fixtures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {

std::string FixturesFolder() { return ArgumentOr("--fixtures=", "tests/torch"); }

Fixtures::Fixtures(const std::string& file)
    : file_([&] {
        auto opened = SafetensorsFile::Open(FixturesFolder() + "/" + file);
        CHECK(opened.ok()) << opened.status();
        return *std::move(opened);
      }()) {}

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

double RelativeDifference(std::span<const float> actual, std::span<const float> expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double element = std::abs(1.0 * actual[i] - expected[i]);
    // A comparison with NaN is false, so NaN must be handled explicitly.
    if (!std::isfinite(element)) return kInfinity;
    difference = std::max(difference, element);
    largest = std::max(largest, std::abs(1.0 * expected[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace cadre
