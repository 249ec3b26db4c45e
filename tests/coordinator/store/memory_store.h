// A store in memory whose transactions can fail.
//
// Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/store.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::testing {

class MemoryStore final : public Store {
 public:
  MemoryStore() = default;
  explicit MemoryStore(std::map<std::string, std::string> records) : records_(std::move(records)) {}

  absl::StatusOr<std::optional<std::string>> Get(absl::string_view key) override {
    absl::MutexLock lock(&mutex_);
    auto it = records_.find(std::string(key));
    if (it == records_.end()) return std::optional<std::string>();
    return std::optional<std::string>(it->second);
  }
  absl::StatusOr<std::map<std::string, std::string>> Scan(absl::string_view prefix) override {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, std::string> found;
    for (const auto& [key, value] : records_) {
      if (absl::StartsWith(key, prefix)) found[key] = value;
    }
    return found;
  }
  absl::Status Commit(const std::vector<Op>& ops) override {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    for (const Op& op : ops) ApplyTo(records_, op);
    return absl::OkStatus();
  }
  void Fail(absl::Status failure) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(failure);
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> records_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::testing
