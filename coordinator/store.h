// Where the coordinator keeps what it must not forget: keys with values, changed in transactions.
//
// Thread-compatible. Values are bytes; keys are plain ASCII.
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
  // Holds when the key has this value or, without a value, is not there.
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

  // Nothing: the key is not there.
  virtual absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) = 0;

  // All records whose key starts with `prefix`.
  virtual absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) = 0;

  // Does all of `ops`, in order, if all of `compares` hold. Durable when it returns OK; nothing has
  // changed when it does not.
  // Errors: Aborted when a comparison does not hold; ResourceExhausted on a full disk; others when
  // the medium fails.
  virtual absl::Status Txn(const std::vector<Compare>& compares, const std::vector<Op>& ops) = 0;
};

}  // namespace cadre
