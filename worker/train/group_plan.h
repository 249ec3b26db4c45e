// The plan that a group executes: the coordinator's, with collective algorithms chosen by measuring
// the links between the ranks.
//
// Thread-safe (pure except for the collectives).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "kernels/backend.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// A cache of the link profiles that a worker has measured, by peers. A group that is formed again
// with the same peers need not measure again, and so starts to train before its assigned model
// version is outdated.
//
// Thread-safe.
class LinkCache {
 public:
  // Older entries are dropped, because links change.
  static constexpr absl::Duration kKept = absl::Minutes(10);

  // `peers` identifies the processes of the group and the kinds of links between them.
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

// A collective of all ranks over the host's transport. The kind of the links of `data` between all
// ranks, of which one rank may see only a part; equal on all ranks.
absl::StatusOr<v1::LinkProfile::Kind> KindOfLinks(const Transport& data, Communicator& all);

// A collective of all ranks. They measure the links, unless the assigned plan or rank 0's cache has
// a profile of them; rank 0 chooses by the run's policy and broadcasts, so that all ranks hold the
// same bytes. A group of one rank has no links. `cache` may be null. `data` is measured, `control`
// carries the agreement; both are the same transport if `kernels` compute on the host. Errors:
// InvalidArgument for a plan that does not fit the model or the devices; those of the transports.
absl::StatusOr<v1::Plan> SettlePlan(const v1::RunSpec& spec, const v1::Assignment& assignment,
                                    Transport& control, Transport& data, Backend& kernels,
                                    LinkCache* cache);

}  // namespace cadre
