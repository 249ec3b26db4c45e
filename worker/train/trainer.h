// One rank's life in one generation of a group: prepare, train, contribute, adopt, evaluate, until
// the group is released.
//
// The step (per bucket): reduce-scatter the gradients, update the owned slice, every H steps
// exchange the owned slice with the aggregators, all-gather. Every rank leads for its own slice, so
// averaging costs a rank n / p words each way, and no rank ever gathers the model of another.
//
// Runs on the caller's thread; the cancellation ends it from any other. Collectives happen in the
// same order on all ranks because every branch is taken on values that all ranks share: what the
// plan says, and what rank 0 broadcasts.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "kernels/kernels.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/cancellation.h"
#include "worker/train/group_control.h"
#include "worker/train/link_cache.h"
#include "worker/transport/transport.h"

namespace cadre {

struct TrainerOptions {
  // Connects the ranks of the group that the assignment names.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const v1::Assignment&)> connect;
  // Connects the same ranks' devices, once they are connected; what comes borrows `control`. Null:
  // data travel as all else does.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data;
  // What was measured for groups before; may be null.
  LinkCache* links = nullptr;
  // How long one exchange with a shard may take, retries included.
  absl::Duration exchange_timeout = absl::Minutes(10);
  // How often rank 0 reports while training.
  absl::Duration report_every = absl::Seconds(1);
};

// How a generation ended for this rank. Never OK: even a run that is done ends by release
// (Cancelled).
struct TrainerOutcome {
  absl::Status status;
  // The run cannot succeed anywhere: its data or its plan is at fault, or it is too large for the
  // device's memory.
  bool permanent = false;
  // Of the kernels' device at the end. Not OK: it does nothing any more, be it that it is lost or
  // that the group died around it; whoever trains on makes a new one.
  absl::Status device;
};

// Everything is borrowed for the call. Counters added to: steps, samples, staged_payload_bytes,
// staged_message_bytes, pulled_payload_bytes, pulled_message_bytes, versions_adopted,
// contributions_late, and those of RunCheckpoints.
TrainerOutcome TrainAsMember(const v1::Assignment& assignment, Kernels& kernels,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const TrainerOptions& options);

}  // namespace cadre
