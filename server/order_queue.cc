#include "server/order_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// An order that takes longer is reported in heartbeats.
constexpr absl::Duration kSlowOrder = absl::Seconds(5);
// Limit of the delayed orders in a heartbeat.
constexpr size_t kMaxDelayedOrders = 64;

// A later order with the same subject replaces an earlier one.
std::string SubjectOf(const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return absl::StrCat("open ", order.open_run().run());
  if (order.has_apply()) return absl::StrCat("apply ", order.apply().run());
  if (order.has_fence())
    return absl::StrCat("fence ", order.fence().run(), " ", order.fence().group());
  if (order.has_report_run()) return absl::StrCat("report ", order.report_run().run());
  if (order.has_publish()) return absl::StrCat("publish ", order.publish().run());
  if (order.has_delete_run()) return absl::StrCat("delete ", order.delete_run().run());
  if (order.has_copy_shard()) {
    return absl::StrCat("copy ", order.copy_shard().run(), " ", order.copy_shard().shard());
  }
  return absl::StrCat("close ", order.close_run().run());
}

const std::string& RunOf(const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return order.open_run().run();
  if (order.has_apply()) return order.apply().run();
  if (order.has_fence()) return order.fence().run();
  if (order.has_report_run()) return order.report_run().run();
  if (order.has_publish()) return order.publish().run();
  if (order.has_copy_shard()) return order.copy_shard().run();
  return order.has_delete_run() ? order.delete_run().run() : order.close_run().run();
}

}  // namespace

std::string BodyName(const v1::CoordinatorMessage& message) {
  const auto* const field = message.GetDescriptor()->FindFieldByNumber(message.body_case());
  return field == nullptr ? "nothing" : field->name();
}

bool OrderQueue::Add(v1::CoordinatorMessage order) {
  if (new_.size() >= options_.max_new) return false;
  new_.push_back(std::move(order));
  return true;
}

std::optional<v1::CoordinatorMessage> OrderQueue::Take(absl::Time now) {
  const bool skip_retries = std::exchange(retried_, false) && !new_.empty();
  for (auto it = failed_.begin(); it != failed_.end() && !skip_retries; ++it) {
    if (it->second.when > now) continue;
    retried_ = true;
    v1::CoordinatorMessage order = std::move(it->second.order);
    failed_.erase(it);
    Begin(order, now);
    return order;
  }
  if (new_.empty()) return std::nullopt;
  v1::CoordinatorMessage order = std::move(new_.front());
  new_.pop_front();
  failed_.erase(SubjectOf(order));
  if (order.has_close_run() || order.has_delete_run()) {
    for (const absl::string_view kind : {"open ", "apply ", "close "}) {
      const std::string obsolete = absl::StrCat(kind, RunOf(order));
      failed_.erase(obsolete);
      if (obsolete != SubjectOf(order)) delays_.erase(obsolete);
    }
  }
  Begin(order, now);
  return order;
}

void OrderQueue::Begin(const v1::CoordinatorMessage& order, absl::Time now) {
  Taken& taken = taken_.emplace();
  taken.subject = SubjectOf(order);
  taken.delay.since = now;
  taken.delay.order.set_run(RunOf(order));
  taken.delay.order.set_order(BodyName(order));
}

std::optional<v1::MemberMessage> OrderQueue::Finish(const v1::CoordinatorMessage& order,
                                                    OrderResult result, absl::Time now) {
  const bool gives_up = result.give_up && now - TakenSince() >= options_.create_patience;
  if (result.repeat.ok() || gives_up) {
    Succeeded();
  } else {
    Failed(order, result.repeat.message(), now);
  }
  return gives_up ? std::move(result.give_up) : std::move(result.answer);
}

void OrderQueue::Succeeded() {
  if (taken_) delays_.erase(taken_->subject);
  taken_.reset();
}

void OrderQueue::Begin(uint64_t epoch) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  new_.clear();
  failed_.clear();
  delays_.clear();
}

void OrderQueue::Failed(v1::CoordinatorMessage order, absl::string_view reason, absl::Time now) {
  const std::optional<Taken> taken = std::exchange(taken_, std::nullopt);
  if (order.epoch() < epoch_) return;
  const std::string subject = SubjectOf(order);
  if (taken) {
    Delay& delay = delays_.try_emplace(subject, taken->delay).first->second;
    delay.order.set_reason(std::string(reason));
  }
  failed_.insert_or_assign(subject, Retry{std::move(order), now + options_.retry_wait});
}

absl::Time OrderQueue::TakenSince() const {
  const auto delayed = delays_.find(taken_->subject);
  return delayed == delays_.end() ? taken_->delay.since : delayed->second.since;
}

std::vector<v1::DelayedOrder> OrderQueue::Delayed(absl::Time now) const {
  std::vector<v1::DelayedOrder> all;
  const auto add = [&](const Delay& delay) {
    all.push_back(delay.order);
    all.back().set_seconds(static_cast<float>(absl::ToDoubleSeconds(now - delay.since)));
  };
  for (const auto& [subject, delay] : delays_) add(delay);
  // A failed one is listed with its error, also while it is tried again.
  const bool is_slow = taken_ && now - taken_->delay.since >= kSlowOrder;
  if (is_slow && !delays_.contains(taken_->subject)) add(taken_->delay);
  if (all.size() > kMaxDelayedOrders) all.resize(kMaxDelayedOrders);
  return all;
}

absl::Time OrderQueue::NextTime() const {
  if (!new_.empty()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [subject, retry] : failed_) next = std::min(next, retry.when);
  return next;
}

}  // namespace cadre
