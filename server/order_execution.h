// Carries out the coordinator's orders to an aggregator.
#pragma once

#include <optional>
#include <string>

#include "proto/cadre/v1/membership.pb.h"
#include "server/shard_host.h"

namespace cadre {

// Whether the message is an order: OpenRun, Apply, Fence, ReportRun, CloseRun or DeleteRun.
bool IsOrder(const v1::CoordinatorMessage& message);

// The name of the field of the message that is set, for logs: its values may be keys.
std::string BodyName(const v1::CoordinatorMessage& message);

struct OrderResult {
  std::optional<v1::MemberMessage> answer;
  // The order has failed for a transient reason, or is not complete, and must be repeated.
  bool repeat = false;
};

// Waits for the disk. Requires: IsOrder(order).
OrderResult ExecuteOrder(ShardHost& host, const v1::CoordinatorMessage& order);

}  // namespace cadre
