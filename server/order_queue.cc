#include "server/order_queue.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// An order that takes longer is reported in heartbeats.
constexpr absl::Duration kSlowOrder = absl::Seconds(5);
// Limit of the delayed orders in a heartbeat.
constexpr size_t kMaxDelayedOrders = 64;

template <typename Order>
std::string CopySubject(const Order& order) {
  return absl::StrCat("copy ", order.run(), " ", order.shard());
}

// A later order with the same subject replaces an earlier one.
std::string SubjectOf(const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return absl::StrCat("open ", order.open_run().run());
  if (order.has_apply()) return absl::StrCat("apply ", order.apply().run());
  if (order.has_fence())
    return absl::StrCat("fence ", order.fence().run(), " ", order.fence().group());
  if (order.has_report_run()) return absl::StrCat("report ", order.report_run().run());
  if (order.has_publish()) return absl::StrCat("publish ", order.publish().run());
  if (order.has_delete_run()) return absl::StrCat("delete ", order.delete_run().run());
  if (order.has_copy_shard()) return CopySubject(order.copy_shard());
  return absl::StrCat("close ", order.close_run().run());
}

// The subject of the copies that the order discards; empty: it makes no shard hollow.
std::string DiscardedBy(const v1::CoordinatorMessage& order) {
  return order.open_run().has_hollow() ? CopySubject(order.open_run()) : "";
}

std::string TextOf(const v1::DelayedOrder& order, absl::Duration age) {
  return absl::StrCat(order.order(), " of ", order.run(), " for ",
                      absl::FormatDuration(absl::Floor(age, absl::Seconds(1))));
}

}  // namespace

std::string BodyName(const v1::CoordinatorMessage& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByNumber(message.body_case());
  return field == nullptr ? "nothing" : field->name();
}

const std::string& OrderQueue::RunOf(const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return order.open_run().run();
  if (order.has_apply()) return order.apply().run();
  if (order.has_fence()) return order.fence().run();
  if (order.has_report_run()) return order.report_run().run();
  if (order.has_publish()) return order.publish().run();
  if (order.has_copy_shard()) return order.copy_shard().run();
  return order.has_delete_run() ? order.delete_run().run() : order.close_run().run();
}

OrderQueue::Lane OrderQueue::LaneOf(const v1::CoordinatorMessage& order) {
  return {order.has_copy_shard(), RunOf(order)};
}

OrderQueue::Lane OrderQueue::CopyLane(const std::string& run) { return {true, run}; }

bool OrderQueue::HasThread(const Lane& lane) const {
  if (taken_.size() >= options_.max_taken) return false;
  const auto copies = std::count_if(taken_.begin(), taken_.end(),
                                    [](const auto& taken) { return taken.first.first; });
  return !lane.first || static_cast<size_t>(copies) < options_.max_taken / 2;
}

bool OrderQueue::DiscardsCopy(const v1::CoordinatorMessage& order) const {
  const auto copy = taken_.find(CopyLane(RunOf(order)));
  return copy != taken_.end() && copy->second.subject == DiscardedBy(order);
}

bool OrderQueue::IsFree(const v1::CoordinatorMessage& order) const {
  if (DiscardsCopy(order) && taken_.at(CopyLane(RunOf(order))).answered) return false;
  if (order.has_copy_shard()) {
    const auto open = taken_.find({/*is_copy=*/false, RunOf(order)});
    if (open != taken_.end() && open->second.discards == SubjectOf(order)) return false;
  }
  const Lane lane = LaneOf(order);
  return !taken_.contains(lane) && HasThread(lane);
}

std::deque<OrderQueue::Waiting>::const_iterator OrderQueue::FirstFree() const {
  std::set<Lane> passed;
  return std::find_if(new_.begin(), new_.end(), [&](const Waiting& waiting) {
    return passed.insert(LaneOf(waiting.order)).second && IsFree(waiting.order);
  });
}

bool OrderQueue::Add(v1::CoordinatorMessage order, absl::Time now) {
  if (order.has_fence()) {
    // Those of a run whose disk hangs do not fill the queue.
    std::erase_if(new_, [subject = SubjectOf(order)](const Waiting& waiting) {
      return SubjectOf(waiting.order) == subject;
    });
  }
  if (new_.size() >= options_.max_new) return false;
  new_.push_back({std::move(order), now});
  return true;
}

std::optional<v1::CoordinatorMessage> OrderQueue::Take(absl::Time now) {
  const auto next = FirstFree();
  const bool skip_retries = std::exchange(retried_, false) && next != new_.end();
  for (auto it = failed_.begin(); it != failed_.end() && !skip_retries; ++it) {
    if (it->second.when > now || !IsFree(it->second.order)) continue;
    retried_ = true;
    v1::CoordinatorMessage order = std::move(it->second.order);
    failed_.erase(it);
    return Begin(std::move(order), now);
  }
  if (next == new_.end()) return std::nullopt;
  v1::CoordinatorMessage order = next->order;
  new_.erase(next);
  failed_.erase(SubjectOf(order));
  // The coordinator repeats the order of a round when the shard has been restored.
  if (order.open_run().has_hollow()) DropFailedApply(order.open_run().run());
  if (order.has_close_run() || order.has_delete_run()) {
    for (const absl::string_view kind : {"open ", "apply ", "close "}) {
      const std::string obsolete = absl::StrCat(kind, RunOf(order));
      failed_.erase(obsolete);
      if (obsolete != SubjectOf(order)) delays_.erase(obsolete);
    }
  }
  return Begin(std::move(order), now);
}

v1::CoordinatorMessage OrderQueue::Begin(v1::CoordinatorMessage order, absl::Time now) {
  if (DiscardsCopy(order)) taken_.at(CopyLane(RunOf(order))).obsolete = true;
  Taken& taken = taken_[LaneOf(order)];
  taken.subject = SubjectOf(order);
  taken.discards = DiscardedBy(order);
  taken.delay.since = now;
  taken.delay.order.set_run(RunOf(order));
  taken.delay.order.set_order(BodyName(order));
  return order;
}

std::optional<v1::MemberMessage> OrderQueue::Finish(const v1::CoordinatorMessage& order,
                                                    OrderResult result, absl::Time now) {
  const std::string subject = SubjectOf(order);
  const auto delayed = delays_.find(subject);
  const auto taken = taken_.find(LaneOf(order));
  const absl::Time first = delayed != delays_.end() ? delayed->second.since
                           : taken != taken_.end()  ? taken->second.delay.since
                                                    : now;
  if (taken != taken_.end()) {
    taken->second.answered = true;
    if (taken->second.obsolete) result = {};
  }
  const bool gives_up = result.give_up && now - first >= options_.create_patience;
  const v1::Applied copied = result.answer.value_or(v1::MemberMessage()).applied();
  if (copied.from_copy() && copied.error().empty()) DropFailedApply(RunOf(order));
  if (result.repeat.ok() || gives_up) {
    delays_.erase(subject);
  } else {
    Failed(order, result.repeat.message(), first, now);
  }
  return gives_up ? std::move(result.give_up) : std::move(result.answer);
}

void OrderQueue::DropFailedApply(const std::string& run) {
  const std::string apply = absl::StrCat("apply ", run);
  failed_.erase(apply);
  delays_.erase(apply);
}

void OrderQueue::Begin(uint64_t epoch) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  new_.clear();
  failed_.clear();
  delays_.clear();
}

void OrderQueue::Failed(v1::CoordinatorMessage order, absl::string_view reason, absl::Time first,
                        absl::Time now) {
  if (order.epoch() < epoch_) return;
  const std::string subject = SubjectOf(order);
  Delay& delay = delays_[subject];
  delay.since = first;
  delay.order.set_run(RunOf(order));
  delay.order.set_order(BodyName(order));
  delay.order.set_reason(std::string(reason));
  failed_.insert_or_assign(subject, Retry{std::move(order), now + options_.retry_wait});
}

std::string OrderQueue::BusyText(absl::Time now) const {
  const Taken& oldest =
      std::min_element(taken_.begin(), taken_.end(), [](const auto& a, const auto& b) {
        return a.second.delay.since < b.second.delay.since;
      })->second;
  return absl::StrCat("it waits, because all threads for orders are busy (", taken_.size(),
                      "), the longest with ", TextOf(oldest.delay.order, now - oldest.delay.since));
}

std::string OrderQueue::TakenText(absl::Time now) const {
  return absl::StrJoin(taken_, ", ", [&](std::string* out, const auto& taken) {
    absl::StrAppend(out, TextOf(taken.second.delay.order, now - taken.second.delay.since));
  });
}

std::vector<v1::DelayedOrder> OrderQueue::Delayed(absl::Time now) const {
  std::vector<v1::DelayedOrder> all;
  const auto add = [&](const Delay& delay) {
    all.push_back(delay.order);
    all.back().set_seconds(static_cast<float>(absl::ToDoubleSeconds(now - delay.since)));
  };
  for (const auto& [lane, taken] : taken_) {
    // A failed one is listed with its error, also while it is tried again.
    const bool is_slow = now - taken.delay.since >= kSlowOrder;
    if (is_slow && !delays_.contains(taken.subject)) add(taken.delay);
  }
  for (const auto& [subject, delay] : delays_) add(delay);
  for (const Waiting& waiting : new_) {
    const Lane lane = LaneOf(waiting.order);
    // The coordinator gives up a run whose shard cannot be created for long; this one was not
    // tried.
    if (waiting.order.has_open_run()) continue;
    if (now - waiting.since < kSlowOrder || taken_.contains(lane) || HasThread(lane)) continue;
    Delay delay{.since = waiting.since};
    delay.order.set_run(lane.second);
    delay.order.set_order(BodyName(waiting.order));
    delay.order.set_reason(BusyText(now));
    add(delay);
  }
  if (all.size() > kMaxDelayedOrders) all.resize(kMaxDelayedOrders);
  return all;
}

absl::Time OrderQueue::NextTime() const {
  if (FirstFree() != new_.end()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [subject, retry] : failed_) {
    if (IsFree(retry.order)) next = std::min(next, retry.when);
  }
  return next;
}

}  // namespace cadre
