#include "coordinator/service/planning_queue.h"

namespace cadre {

void PlanningQueue::Push(SearchPlans search) {
  absl::MutexLock lock(&mutex_);
  if (search.urgent) {
    std::erase_if(searches_, [&](const SearchPlans& other) { return other.key == search.key; });
  }
  (search.urgent ? urgent_ : searches_).push_back(std::move(search));
}

void PlanningQueue::Push(PredictStep predict) {
  absl::MutexLock lock(&mutex_);
  const PredictionKey key{predict.run, predict.group, predict.measured > 0};
  const auto waiting = by_key_.find(key);
  if (waiting != by_key_.end()) {
    waiting->second->second = std::move(predict);
    return;
  }
  by_key_[key] = predictions_.insert(predictions_.end(), {key, std::move(predict)});
}

std::optional<PlanningWork> PlanningQueue::Pop() {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !urgent_.empty() || !predictions_.empty() || !searches_.empty();
  };
  mutex_.Await(absl::Condition(&ready));
  if (closed_) return std::nullopt;
  if (urgent_.empty() && !predictions_.empty()) {
    PlanningWork work = std::move(predictions_.front().second);
    by_key_.erase(predictions_.front().first);
    predictions_.pop_front();
    return work;
  }
  std::deque<SearchPlans>& searches = urgent_.empty() ? searches_ : urgent_;
  PlanningWork work = std::move(searches.front());
  searches.pop_front();
  return work;
}

void PlanningQueue::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

}  // namespace cadre
