// What the training loop says to the coordinator and hears from it.
//
// The loop knows no gRPC: the worker program implements this over its membership stream, tests and
// in-process groups implement it directly. Only rank 0 reports and decides; its peers hear of it
// inside the group.
//
// Thread-safe: the training thread calls, other threads answer.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class GroupControl {
 public:
  virtual ~GroupControl() = default;

  // This rank is ready; then waits until all are. Errors: Cancelled when the group was released.
  virtual absl::StatusOr<v1::Start> PreparedAndStart(const v1::Prepared& prepared) = 0;

  // Fire and forget.
  virtual void Report(const v1::Progress& progress) = 0;
  // Rank 0 only: what its steps are made of. Said again after a reconnect, until the next one.
  virtual void Measured(const v1::Measured& measured) = 0;

  // Rank 0 only: hands a contribution in. Kept until a decision answers it.
  virtual void Contribute(const v1::Contributed& contributed) = 0;
  // Rank 0 only: the next decision, or nothing if none came for `patience`.
  // Errors: Cancelled when the group was released.
  virtual absl::StatusOr<std::optional<v1::Decision>> AwaitDecision(absl::Duration patience) = 0;
  virtual void Adopted(const v1::Adopted& adopted) = 0;
  virtual void Evaluated(const v1::Evaluated& evaluated) = 0;

  // Every rank, between steps: a trace of the next steps that somebody wants. Does not wait. What
  // it hands out it does not hand out again until Traced has answered it.
  virtual std::optional<v1::TraceSteps> TakeTraceRequest() = 0;
  // Answers the request that was taken last; place and request are those of the request. Fire and
  // forget: when the group ends first there is nothing to say.
  virtual void Traced(const v1::Traced& traced) = 0;

  // False while the coordinator is away.
  virtual bool connected() const = 0;
  // Where a shard is now, host:port.
  virtual std::string ShardAddress(uint32_t shard) const = 0;
};

}  // namespace cadre
