// An error in a run spec. A value.
#pragma once

#include <string>

namespace cadre {

struct Problem {
  // Path of the field from the spec, such as "model.layer[3].convolution.kernel".
  std::string field;
  // One line, with valid values.
  std::string message;

  std::string ToString() const { return field + ": " + message; }
  friend bool operator==(const Problem&, const Problem&) = default;
};

}  // namespace cadre
