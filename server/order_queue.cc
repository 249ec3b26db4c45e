#include "server/order_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// A later order with the same subject replaces an earlier one.
std::string SubjectOf(const v1::CoordinatorMessage& order) {
  if (order.has_open_run()) return absl::StrCat("open ", order.open_run().run());
  if (order.has_apply()) return absl::StrCat("apply ", order.apply().run());
  if (order.has_fence())
    return absl::StrCat("fence ", order.fence().run(), " ", order.fence().group());
  if (order.has_report_run()) return absl::StrCat("report ", order.report_run().run());
  if (order.has_delete_run()) return absl::StrCat("delete ", order.delete_run().run());
  return absl::StrCat("close ", order.close_run().run());
}

}  // namespace

bool OrderQueue::Add(v1::CoordinatorMessage order) {
  if (new_.size() >= max_new_) return false;
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
    return order;
  }
  if (new_.empty()) return std::nullopt;
  v1::CoordinatorMessage order = std::move(new_.front());
  new_.pop_front();
  failed_.erase(SubjectOf(order));
  if (order.has_close_run() || order.has_delete_run()) {
    const std::string& run =
        order.has_close_run() ? order.close_run().run() : order.delete_run().run();
    for (const absl::string_view obsolete : {"open ", "apply ", "close "}) {
      failed_.erase(absl::StrCat(obsolete, run));
    }
  }
  return order;
}

void OrderQueue::Begin(uint64_t epoch) {
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  new_.clear();
  failed_.clear();
}

void OrderQueue::Failed(v1::CoordinatorMessage order, absl::Time now) {
  if (order.epoch() < epoch_) return;
  const std::string subject = SubjectOf(order);
  failed_.insert_or_assign(subject, Retry{std::move(order), now + retry_wait_});
}

absl::Time OrderQueue::NextTime() const {
  if (!new_.empty()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [subject, retry] : failed_) next = std::min(next, retry.when);
  return next;
}

}  // namespace cadre
