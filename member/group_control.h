// The training loop's connection to the coordinator.
//
// The loop does not depend on gRPC: the worker program implements this interface over its
// membership stream; tests and in-process groups implement it directly. Only rank 0 reports and
// receives decisions, and broadcasts them to its peers.
//
// Thread-safe: the training thread calls; responses come from other threads.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/client/shard_client.h"

namespace cadre {

// A message of the training loop to the coordinator.
using TrainingReport =
    std::variant<v1::Prepared, v1::Progress, v1::Measured, v1::Contributed, v1::Adopted,
                 v1::Evaluated, v1::Traced, v1::Restaged, v1::Checkpointed>;

class GroupControl {
 public:
  virtual ~GroupControl() = default;

  // Reports that this rank is ready and waits until all are. Errors: Cancelled when the group was
  // released.
  virtual absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& prepared) = 0;

  // Sends without waiting for a response. Contributed is sent again after every reconnect until a
  // decision responds to it; the latest Measured, Adopted, Checkpointed and Evaluated are sent
  // again, too. Traced responds to the latest trace request and must have its place and request
  // number.
  virtual void Send(const TrainingReport& report) = 0;
  // Rank 0 only: returns the next decision, or nothing if none arrives within `patience`.
  // Errors: Cancelled when the group was released.
  virtual absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration patience) = 0;

  // Rank 0 only: whether the other groups wait for the contribution to this round.
  virtual bool nudged(uint32_t round) const = 0;

  // The time after which this worker leaves in any case; nullopt: it does not leave.
  virtual std::optional<absl::Duration> leaves_within() const { return std::nullopt; }
  // Whether this worker leaves the group.
  bool draining() const { return leaves_within().has_value(); }
  // Whether it leaves so soon that its group should contribute now, and not after the `rest` of the
  // period: the exchange and the round take time, too.
  bool LeavesBefore(absl::Duration rest) const {
    const std::optional<absl::Duration> left = leaves_within();
    return left.has_value() && rest > *left / 2;
  }
  // On every rank, after a contribution: OK unless this worker leaves the group; then waits for its
  // release and returns Cancelled.
  virtual absl::Status LeaveIfDraining() { return absl::OkStatus(); }

  // On every rank, between steps: returns a pending request to trace the next steps. Does not wait.
  // A request is returned once; the next one follows only after Traced has responded to it.
  virtual std::optional<v1::TraceSteps> TakeTraceRequest() = 0;

  // False while the coordinator is unreachable.
  virtual bool connected() const = 0;
  // Where a shard was last known to be.
  virtual ShardLocation LocationOf(uint32_t shard) const = 0;
  // Whether the coordinator has reported, as its last word, that the shard's aggregator is away.
  virtual bool ShardIsAway(uint32_t /*shard*/) const { return false; }
  // From now on `handler` receives requests to stage values again, on a thread that it must not
  // block; Restaged answers each. Null: none, and none is running after the return.
  virtual void HandleRestage(std::function<void(const v1::Restage&)> /*handler*/) {}
};

}  // namespace cadre
