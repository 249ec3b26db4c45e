// The orders of the coordinator that an aggregator has not carried out: new ones, in the order of
// arrival, and failed ones that are tried again.
//
// A pure state machine: time is an argument. Its drivers are server/aggregator, with a pool of
// threads that carry the orders out, and tests/simulation/simulated_aggregator. Thread-compatible.
//
//   while (const auto order = queue.Take(now)) {
//     if (const auto answer = queue.Finish(*order, ExecuteOrder(host, *order), now)) Send(*answer);
//     queue.Release(*order);
//   }
//
// Guarantees: several orders may be carried out at the same time, but one at a time for each run,
// in the order of arrival, so that a disk that hangs or a large shard stops no other run. Orders to
// copy a version, which wait for another aggregator, are apart from the other orders of their run,
// and take at most half of the threads. A failed order is tried again `retry_wait` after its
// failure, whatever else arrives. One that creates a shard is given up when it has failed for
// `create_patience`. A newer order of the same kind for the same run replaces a failed one;
// CloseRun and DeleteRun remove it. So does what makes a failed Apply obsolete: an OpenRun that
// makes the shard hollow, and its restoring from a copy, which another thread carries out. Such an
// OpenRun discards what a copy that is being carried out has stored, so that copy is not answered
// and not tried again; the coordinator orders it anew. At most one retry precedes a new order, so
// that slow retries do not delay a CloseRun that makes room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
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
    // Maximum number of orders that are carried out at the same time. Requires: at least 2.
    size_t max_taken = 16;
  };
  explicit OrderQueue(const Options& options) : options_(options) {}

  // The run that the order concerns.
  static const std::string& RunOf(const v1::CoordinatorMessage& order);

  // Returns false, and drops the order, if `max_new` new orders are waiting.
  bool Add(v1::CoordinatorMessage order, absl::Time now);
  // Removes and returns an order to carry out now, if there is one. Finish and Release must follow.
  std::optional<v1::CoordinatorMessage> Take(absl::Time now);
  // The order was carried out with this result. Returns the answer to the coordinator, if there is
  // one; the run takes no other order until Release, so that answers are sent in order.
  std::optional<v1::MemberMessage> Finish(const v1::CoordinatorMessage& order, OrderResult result,
                                          absl::Time now);
  void Release(const v1::CoordinatorMessage& order) { taken_.erase(LaneOf(order)); }
  // A coordinator with this epoch has started: drops the orders of earlier ones. It repeats those
  // that are still valid; if its store is older, it does not know the others.
  void Begin(uint64_t epoch);
  // The orders to report in heartbeats, at most 64: those that have failed and are tried again,
  // those that take longer than five seconds, and, if all threads are busy, those that have waited
  // longer.
  std::vector<v1::DelayedOrder> Delayed(absl::Time now) const;
  // The orders that are being carried out, such as "apply of run-1 for 40s"; empty if there are
  // none.
  std::string TakenText(absl::Time now) const;
  // When Take returns an order if none is added or released; InfinitePast: now.
  absl::Time NextTime() const;

 private:
  // Whether it is an order to copy a version, and the run. Of each, one order is taken at a time.
  using Lane = std::pair<bool, std::string>;
  struct Waiting {
    v1::CoordinatorMessage order;
    absl::Time since;
  };
  struct Retry {
    v1::CoordinatorMessage order;
    absl::Time when;
  };
  struct Delay {
    v1::DelayedOrder order;
    absl::Time since;
  };
  struct Taken {
    std::string subject;
    Delay delay;
    // Finish has returned its answer, which is being sent.
    bool answered = false;
    // An order to copy a version whose shard has become hollow since.
    bool obsolete = false;
    // The subject of the copies that an order to make a shard hollow discards; empty: it is another
    // order.
    std::string discards;
  };

  static Lane LaneOf(const v1::CoordinatorMessage& order);
  static Lane CopyLane(const std::string& run);
  // Whether Take may return the order: there is a thread for it; no answer that it makes obsolete
  // is being sent, and no shard is being made hollow whose version it copies.
  bool IsFree(const v1::CoordinatorMessage& order) const;
  // The first new order that Take may return: none overtakes another one of its lane.
  std::deque<Waiting>::const_iterator FirstFree() const;
  bool HasThread(const Lane& lane) const;
  // Whether the order makes a copy that is being carried out obsolete.
  bool DiscardsCopy(const v1::CoordinatorMessage& order) const;
  // Take returns this order.
  v1::CoordinatorMessage Begin(v1::CoordinatorMessage order, absl::Time now);
  // It has failed for a reason that may pass. `first`: when it was carried out for the first time.
  void Failed(v1::CoordinatorMessage order, absl::string_view reason, absl::Time first,
              absl::Time now);
  // An Apply that has failed is not tried again.
  void DropFailedApply(const std::string& run);
  // "it waits, because all threads ...". Requires: an order is taken.
  std::string BusyText(absl::Time now) const;

  const Options options_;
  std::deque<Waiting> new_;
  uint64_t epoch_ = 0;
  // By subject.
  std::map<std::string, Retry> failed_;
  // Orders that have failed and were not carried out since, by subject.
  std::map<std::string, Delay> delays_;
  // The orders that Take has returned, until their Release.
  std::map<Lane, Taken> taken_;
  // Take returned a failed order last.
  bool retried_ = false;
};

}  // namespace cadre
