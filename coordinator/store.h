// The coordinator's durable storage: keys with values, changed in transactions.
//
// Thread-compatible. Values are bytes; keys are printable ASCII.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class Store {
 public:
  // True if the key has this value or, without a value, does not exist.
  struct Compare {
    std::string key;
    std::optional<std::string> value;
  };
  struct Op {
    enum class Kind { kPut, kErase, kErasePrefix };
    Kind kind = Kind::kPut;
    std::string key;
    std::string value;
  };

  virtual ~Store() = default;

  // Returns nothing if the key does not exist.
  virtual absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) = 0;

  // All records whose key starts with `prefix`.
  virtual absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) = 0;

  // Applies all of `ops`, in order, if all of `compares` are true. Durable when it returns OK;
  // otherwise nothing has changed. Errors: Aborted when a comparison is false; ResourceExhausted on
  // a full disk; others on I/O errors.
  virtual absl::Status Txn(const std::vector<Compare>& compares, const std::vector<Op>& ops) = 0;
};

}  // namespace cadre
