// Counts the samples of a data set that cannot be read, names each in the log once, and says when
// there are too many.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class CorruptSamples {
 public:
  explicit CorruptSamples(int64_t allowed) : allowed_(allowed) {}

  // `name` tells samples apart; saying the same one again counts once.
  // Errors: DataLoss naming the sample if it is one too many.
  absl::Status Add(const std::string& name, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const int64_t allowed_;
  mutable absl::Mutex mutex_;
  // At most allowed_ of them.
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
