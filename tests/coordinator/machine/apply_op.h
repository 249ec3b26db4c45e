// Applies the operations of a Store to a map, for tests that need no store.
//
// Thread-compatible (pure function).
#pragma once

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "coordinator/store/store.h"

namespace cadre::testing {

// Applies the operation as every Store does.
inline void ApplyTo(std::map<std::string, std::string>& records, const Store::Op& op) {
  switch (op.kind) {
    case Store::Op::Kind::kPut:
      records[op.key] = op.value;
      break;
    case Store::Op::Kind::kErase:
      records.erase(op.key);
      break;
    case Store::Op::Kind::kErasePrefix:
      std::erase_if(records,
                    [&](const auto& record) { return absl::StartsWith(record.first, op.key); });
      break;
  }
}

}  // namespace cadre::testing
