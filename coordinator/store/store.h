// The coordinator's durable storage: keys with values, changed in transactions.
//
// Thread-compatible. Values are bytes; keys are printable ASCII.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

class Store {
 public:
  // Writes the record with the key, deletes it, or deletes all records whose keys begin with `key`;
  // there may be none.
  struct Op {
    enum class Kind { kPut, kErase, kErasePrefix };
    Kind kind = Kind::kPut;
    std::string key;
    // For kPut.
    std::string value;
  };

  virtual ~Store() = default;

  // Returns nullopt if the key does not exist.
  virtual absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) = 0;

  // All records whose keys start with `prefix`. Requires: the prefix is not empty.
  virtual absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) = 0;

  // Applies all of `ops`, in order. Durable when it returns OK; otherwise nothing has changed.
  // Errors: ResourceExhausted on a full disk; others on I/O errors.
  virtual absl::Status Commit(const std::vector<Op>& ops) = 0;

  // The epoch of a coordinator that begins at `now`, with the records of this store: higher than
  // `above`, the highest one that it knows. Requires: the records are read afterwards. Errors:
  // those of Commit.
  virtual absl::StatusOr<uint64_t> BeginEpoch(uint64_t above, absl::Time now) {
    // A coordinator that has lost its store knows none; the clock is usually above earlier ones.
    return std::max(above + 1, static_cast<uint64_t>(absl::ToUnixMillis(now)));
  }

  // Writes a copy of all records to a new file. Errors: those of Commit; Unimplemented.
  virtual absl::Status CopyTo(const std::string& path) {
    return absl::UnimplementedError(path + ": this store cannot be copied");
  }
};

}  // namespace cadre
