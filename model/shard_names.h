// Names of numbered files: "train-{000..015}.tar" is a pattern for sixteen names.
//
// Values; thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace cadre {

// The names of a pattern, in order. Each is made when it is requested: a pattern of a few bytes may
// have a million names.
class ShardNames {
 public:
  // A pattern without a range is a single name. Numbers are padded with zeros to the width of the
  // first one. Errors: InvalidArgument for braces without a range, descending ranges, more than a
  // million names, and more than one range.
  static absl::StatusOr<ShardNames> Parse(const std::string& pattern);

  int64_t size() const { return size_; }
  // Requires: 0 <= index < size().
  std::string operator[](int64_t index) const;

 private:
  ShardNames() = default;

  std::string before_;
  std::string after_;
  // Whether there is a range; otherwise `before_` is the only name.
  bool numbered_ = false;
  int64_t first_ = 0;
  size_t digits_ = 0;
  int64_t size_ = 1;
};

}  // namespace cadre
