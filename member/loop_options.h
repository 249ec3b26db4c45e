// What the loop of a rank (member/member_loop.h) and its parts need of the process.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/transport.h"
#include "member/runtime.h"
#include "member/state_vault.h"
#include "member/thread_runtime.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

struct MemberLoopOptions {
  // By default threads, and channels without TLS to the shards.
  Runtime* runtime = &ThreadRuntime::Insecure();
  // Connects the ranks of the assignment's group.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const v1::Assignment&)> connect;
  // Optimizer states of the group's earlier generations. Null: they are lost when it is re-formed.
  StateVault* states = nullptr;
  // What codes have left out of the group's contributions (ShardExchange). Null: as above.
  StateVault* residuals = nullptr;
  // Shows what the training thread does; may be null.
  TrainerProgress* progress = nullptr;
  // An exchange with a shard ends after this time without progress; the time for which its
  // aggregator is away does not count.
  absl::Duration exchange_silence = absl::Seconds(90);
};

}  // namespace cadre
