// What a worker has measured of the links to its peers, kept while it lives: a group that is formed
// again with the same peers need not measure again, and so comes to training before the version
// that it was assigned is replaced by the next.
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
  // Links change: what is older is forgotten.
  static constexpr absl::Duration kKept = absl::Minutes(10);

  // `peers`: what tells apart whom the links connect, and how.
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
