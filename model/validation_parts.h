// What validate.cc is composed of: rules for values, which all parts of a spec share, and the parts
// that have a file of their own. Private to this folder.
//
// Thread-safe (pure functions); a SpecChecker is thread-compatible.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "model/graph.h"
#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The problems of parts of a spec, in the order of their fields. `graph`: null if the model has
// problems; rules that depend on its shapes are then skipped.
//
// validate_data.cc. Reads no files, which are on other hosts (model/formats/data_check.h reads
// them).
std::vector<Problem> DataProblems(const v1::RunSpec& spec, const Graph* graph);
// validate_optimizer.cc: optimizer and learning rate schedule.
std::vector<Problem> OptimizerProblems(const v1::RunSpec& spec);
// validate_cluster.cc: groups, ranks, mesh, devices and pins of layers.
std::vector<Problem> ClusterProblems(const v1::RunSpec& spec, const Graph* graph);

// Ranks along an axis, from the mesh or from the counts; 1 by default.
uint32_t RanksAlong(const v1::Cluster& cluster, absl::string_view name);

// Whether the spec has a rule that ends the run.
inline bool GivesStop(const v1::Stop& stop) {
  return stop.epochs() > 0 || stop.steps() > 0 || stop.test_accuracy() != 0.0F;
}

// The value of a count whose default is 1; 0 means not set.
inline uint32_t OrOne(uint32_t value) { return value == 0 ? 1 : value; }

// Base class of the checkers. NaN and infinities violate each of its rules for floats.
class SpecChecker : protected ProblemCollector {
 public:
  // Both are borrowed.
  explicit SpecChecker(const v1::RunSpec& spec, const Graph* graph = nullptr)
      : spec_(spec), graph_(graph) {}

 protected:
  void AtMost(absl::string_view field, uint32_t value, uint32_t max) {
    if (value > max) Add(field, "is ", value, "; at most ", max, " is possible");
  }

  void AtLeastOne(absl::string_view field, uint32_t value) {
    if (value == 0) Add(field, "is 0; it must be at least 1");
  }

  void Finite(absl::string_view field, float value) {
    if (!std::isfinite(value)) Add(field, "is ", value, "; it must be a finite number");
  }

  void NotNegative(absl::string_view field, float value) {
    if (std::isfinite(value) && value >= 0.0F) return;
    Add(field, "is ", value, "; it must be a number of at least 0");
  }

  void Positive(absl::string_view field, float value) {
    if (std::isfinite(value) && value > 0.0F) return;
    Add(field, "is ", value, "; it must be a number above 0");
  }

  void Fraction(absl::string_view field, float value) {
    if (value >= 0.0F && value <= 1.0F) return;
    Add(field, "is ", value, "; it must be from 0 to 1");
  }

  void BelowOne(absl::string_view field, float value) {
    if (value >= 0.0F && value < 1.0F) return;
    Add(field, "is ", value, "; it must be at least 0 and below 1");
  }

  // Requires UTF-8 without zero bytes.
  void Path(absl::string_view field, const std::string& path) {
    if (!IsUtf8(path)) {
      Add(field, Quoted(path), " is not UTF-8; give the path in that encoding");
    } else if (path.find('\0') != std::string::npos) {
      Add(field, Quoted(path), " contains a zero byte");
    }
  }

  void NeededPath(absl::string_view field, const std::string& path) {
    if (path.empty()) return Add(field, "is missing; give the path");
    Path(field, path);
  }

  // Adds a problem if `value` is above 0 but the text of another field, which it requires, is
  // empty.
  void Requires(absl::string_view field, uint64_t value, absl::string_view other,
                const std::string& other_value) {
    if (value > 0 && other_value.empty()) {
      Add(field, "is ", value, ", but ", other, " is not set");
    }
  }

  const v1::RunSpec& spec_;
  // Null if the model has problems.
  const Graph* graph_;
};

}  // namespace cadre
