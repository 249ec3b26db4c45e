// The orders of the coordinator that an aggregator has not carried out: new ones, in the order of
// arrival, and failed ones that are tried again.
//
// A pure state machine: time is an argument. Thread-compatible.
//
// Guarantees: a failed order is tried again `retry_wait` after its failure, whatever else arrives.
// A newer order of the same kind for the same run replaces it; CloseRun and DeleteRun remove it.
// At most one retry precedes a new order, so that slow retries do not delay a CloseRun that makes
// room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// The name of the field of the message that is set, for logs and reports: its values may be keys.
std::string BodyName(const v1::CoordinatorMessage& message);

class OrderQueue {
 public:
  // Requires: max_new > 0.
  OrderQueue(absl::Duration retry_wait, size_t max_new)
      : retry_wait_(retry_wait), max_new_(max_new) {}

  // Returns false, and drops the order, if max_new new orders are waiting.
  bool Add(v1::CoordinatorMessage order);
  // Removes and returns the order to carry out now, if any. Succeeded or Failed must follow.
  std::optional<v1::CoordinatorMessage> Take(absl::Time now);
  // A coordinator with this epoch has started: drops the orders of earlier ones. It repeats those
  // that are still valid; if its store is older, it does not know the others.
  void Begin(uint64_t epoch);
  // The order that Take returned last is carried out, or cannot be.
  void Succeeded();
  // The order that Take returned last has failed for a reason that may pass.
  void Failed(v1::CoordinatorMessage order, absl::string_view reason, absl::Time now);
  // When the order that Take returned last was carried out for the first time. Requires: there is
  // one.
  absl::Time taken_since() const;
  // The orders that have failed and are tried again, and the one that Take returned last if that
  // was at least `slow` ago.
  std::vector<v1::DelayedOrder> Delayed(absl::Time now, absl::Duration slow) const;
  // When Take returns an order if none is added; InfinitePast: now.
  absl::Time NextTime() const;

 private:
  struct Retry {
    v1::CoordinatorMessage order;
    absl::Time when;
  };

  // Take returns this order.
  void Begin(const v1::CoordinatorMessage& order, absl::Time now);

  const absl::Duration retry_wait_;
  const size_t max_new_;
  std::deque<v1::CoordinatorMessage> new_;
  uint64_t epoch_ = 0;
  // By subject.
  std::map<std::string, Retry> failed_;
  // Orders that have failed and were not carried out since, by subject.
  struct Delay {
    v1::DelayedOrder order;
    absl::Time since;
  };
  std::map<std::string, Delay> delays_;
  // The order that Take returned last, until it has succeeded or failed.
  struct Taken {
    std::string subject;
    Delay delay;
  };
  std::optional<Taken> taken_;
  // Take returned a failed order last.
  bool retried_ = false;
};

}  // namespace cadre
