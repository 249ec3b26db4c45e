// Errors in protobuf messages that users write: run specs, cluster profiles, operator graphs.
// Values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre {

// One error.
struct Problem {
  // Path of the field from the message, such as "model.layer[3].convolution.kernel".
  std::string field;
  // One line that states the valid values.
  std::string message;

  std::string ToString() const { return absl::StrCat(field, ": ", message); }
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Base class of the checkers of such messages: collects problems.
class ProblemCollector {
 protected:
  template <typename... Parts>
  void Add(absl::string_view field, const Parts&... message) {
    problems_.push_back({std::string(field), absl::StrCat(message...)});
  }

  std::vector<Problem> problems_;
};

// OK without problems. Errors: InvalidArgument with one "field: message" per line.
absl::Status StatusOf(const std::vector<Problem>& problems);

// A name for use in error texts: escaped, in quotes, truncated if it is long.
std::string Quoted(absl::string_view name);

}  // namespace cadre
