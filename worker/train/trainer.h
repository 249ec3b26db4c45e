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

struct TrainerOptions {
  // Connects the ranks of the assignment's group.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const v1::Assignment&)> connect;
  // Connects the devices of the same ranks, after `connect`; the result borrows `control`. Null:
  // tensors use the same transport as control messages.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Transport& control)> connect_data;
  // Link profiles of earlier groups; may be null.
  LinkCache* links = nullptr;
  // Optimizer states of the group's earlier generations. Null: they are lost when it is re-formed.
  StateVault* states = nullptr;
  // What codes have left out of the group's contributions (ShardExchange). Null: as above.
  StateVault* residuals = nullptr;
  // Shows what the training thread does; may be null.
  TrainerProgress* progress = nullptr;
  // Threads that read and decode samples, at least 1.
  int loader_threads = 1;
  // An exchange with a shard ends after this time without progress.
  absl::Duration exchange_silence = absl::Seconds(90);
  // Files of `data`, and of `checkpoint`, of the spec.
  RootedFiles data_files = RootedFiles::Unrestricted();
  RootedFiles checkpoint_files = RootedFiles::Unrestricted();
  // Credentials for the channels to the shards.
  Credentials credentials = Credentials::Insecure();
  // How often rank 0 reports while training.
  absl::Duration report_every = absl::Seconds(1);
};

// Trains until the generation ends; borrows all arguments for the call. Adds to the counters steps
// and samples, those of RunMemberLoop and those of RunCheckpoints.
TrainerOutcome TrainAsMember(const v1::Assignment& assignment, Backend& kernels,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const TrainerOptions& options);

}  // namespace cadre
