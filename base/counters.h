// Named monotonic counters, for the status.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class Counters {
 public:
  void Add(absl::string_view name, uint64_t amount = 1) ABSL_LOCKS_EXCLUDED(mutex_);
  // 0 for unknown names.
  uint64_t Get(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::map<std::string, uint64_t> Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
