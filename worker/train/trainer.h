// The training loop of one rank in one generation of a group: prepare, then train, contribute the
// weights to an average, adopt the averaged version and evaluate it, until the coordinator releases
// the group. trainer.cc has an overview.
//
// Runs on the caller's thread; the cancellation ends it from any other thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "base/rooted_files.h"
#include "base/rpc/credentials.h"
#include "comm/transport/transport.h"
#include "kernels/backend.h"
#include "member/cancellation.h"
#include "member/group_control.h"
#include "member/member_loop.h"
#include "member/state_vault.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"
#include "worker/train/group_plan.h"

namespace cadre {

// Those of the loop, and:
struct TrainerOptions : MemberLoopOptions {
  // Connects the devices of the same ranks, after `connect`; the result borrows `control`. Null:
  // tensors use the same transport as control messages.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data;
  // Link profiles of earlier groups; may be null.
  LinkCache* links = nullptr;
  // Threads that read and decode samples, at least 1.
  int loader_threads = 1;
  // Files of `data`, and of `checkpoint`, of the spec.
  RootedFiles data_files = RootedFiles::Unrestricted();
  RootedFiles checkpoint_files = RootedFiles::Unrestricted();
  // How often rank 0 reports while training.
  absl::Duration report_every = absl::Seconds(1);
};

// Trains until the generation ends; borrows all arguments for the call. Adds to the counters steps
// and samples, those of RunMemberLoop and those of RunCheckpoints.
TrainerOutcome TrainAsMember(const v1::Assignment& assignment, Backend& kernels,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const TrainerOptions& options);

}  // namespace cadre
