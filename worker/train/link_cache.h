// Link profiles that a worker has measured, by peers. A group that is formed again with the same
// peers need not measure again, and so starts to train before its assigned version is outdated.
//
// Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/plan.pb.h"

namespace cadre {

class LinkCache {
 public:
  // Older entries are dropped, because links change.
  static constexpr absl::Duration kKept = absl::Minutes(10);

  // `peers`: identifies the processes and kinds of links.
  std::optional<v1::LinkProfile> Get(const std::vector<std::string>& peers, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Put(const std::vector<std::string>& peers, const v1::LinkProfile& link, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    v1::LinkProfile link;
    absl::Time measured;
  };
  void ForgetOld(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::map<std::vector<std::string>, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
