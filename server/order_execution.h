// Carries out the coordinator's orders to an aggregator.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/shard_host.h"

namespace cadre {

// Whether the message is an order: OpenRun, Apply, Fence, ReportRun, CloseRun or DeleteRun.
bool IsOrder(const v1::CoordinatorMessage& message);

struct OrderResult {
  std::optional<v1::MemberMessage> answer;
  // Why the order must be repeated: it has failed for a reason that may pass, or is not complete.
  // OK: it is not repeated.
  absl::Status repeat;
  // The answer if the order is not repeated any longer: the shard cannot be created. Unset: it is
  // repeated until it is carried out.
  std::optional<v1::MemberMessage> give_up;
};

// What takes effect when the message arrives, before the orders that it follows are carried out:
// keys and fences, and the end of contributions to a run whose files are to be removed. Does not
// wait for the disk.
void OnArrival(ShardHost& host, const v1::CoordinatorMessage& message);

// Waits for the disk. Requires: IsOrder(order); OnArrival was called.
OrderResult ExecuteOrder(ShardHost& host, const v1::CoordinatorMessage& order);

}  // namespace cadre
