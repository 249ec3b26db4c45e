// The orders of the coordinator that an aggregator has not carried out: new ones, in the order of
// arrival, and failed ones that are tried again.
//
// A pure state machine: time is an argument. Its drivers are server/aggregator, with a thread that
// carries the orders out, and tests/simulation/simulated_aggregator. Thread-compatible.
//
//   while (const auto order = queue.Take(now)) {
//     if (const auto answer = queue.Finish(*order, ExecuteOrder(host, *order), now)) Send(*answer);
//   }
//
// Guarantees: a failed order is tried again `retry_wait` after its failure, whatever else arrives.
// One that creates a shard is given up when it has failed for `create_patience`.
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
#include "server/order_execution.h"

namespace cadre {

// The name of the field of the message that is set, for logs and reports: its values may be keys.
std::string BodyName(const v1::CoordinatorMessage& message);

class OrderQueue {
 public:
  struct Options {
    // Wait before a failed order is retried.
    absl::Duration retry_wait = absl::Seconds(2);
    // How long the creation of a shard is tried again.
    absl::Duration create_patience = absl::Seconds(15);
    // Maximum number of new orders that wait, enough for several per run. Requires: positive.
    size_t max_new = 4096;
  };
  explicit OrderQueue(const Options& options) : options_(options) {}

  // Returns false, and drops the order, if `max_new` new orders are waiting.
  bool Add(v1::CoordinatorMessage order);
  // Removes and returns the order to carry out now, if any. Finish must follow.
  std::optional<v1::CoordinatorMessage> Take(absl::Time now);
  // The order that Take returned last was carried out with this result. Returns the answer to the
  // coordinator, if there is one.
  std::optional<v1::MemberMessage> Finish(const v1::CoordinatorMessage& order, OrderResult result,
                                          absl::Time now);
  // A coordinator with this epoch has started: drops the orders of earlier ones. It repeats those
  // that are still valid; if its store is older, it does not know the others.
  void Begin(uint64_t epoch);
  // The orders to report in heartbeats, at most 64: those that have failed and are tried again, and
  // one that takes longer than five seconds.
  std::vector<v1::DelayedOrder> Delayed(absl::Time now) const;
  // When Take returns an order if none is added; InfinitePast: now.
  absl::Time NextTime() const;

 private:
  struct Retry {
    v1::CoordinatorMessage order;
    absl::Time when;
  };

  // Take returns this order.
  void Begin(const v1::CoordinatorMessage& order, absl::Time now);
  // The order that Take returned last is carried out, or cannot be.
  void Succeeded();
  // It has failed for a reason that may pass.
  void Failed(v1::CoordinatorMessage order, absl::string_view reason, absl::Time now);
  // When it was carried out for the first time. Requires: there is one.
  absl::Time TakenSince() const;

  const Options options_;
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
  // The order that Take returned last, until its Finish.
  struct Taken {
    std::string subject;
    Delay delay;
  };
  std::optional<Taken> taken_;
  // Take returned a failed order last.
  bool retried_ = false;
};

}  // namespace cadre
