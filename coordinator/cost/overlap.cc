#include "coordinator/cost/overlap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace cadre {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// After so many steps what the first ones began with is forgotten; the mean is taken over the rest.
constexpr int kSteps = 64;
constexpr int kForgotten = 32;

// Plays steps event by event.
class Player {
 public:
  explicit Player(const StepModel& model)
      : model_(model), gathered_(model.buckets.size(), 0), waits_(model.layers.size()) {
    for (size_t b = 0; b < model.buckets.size(); ++b) {
      waits_[static_cast<size_t>(model.buckets[b].layer)].push_back(b);
    }
  }

  // The mean seconds of a step.
  double Run() {
    std::vector<double> ends;
    while (step_ < kSteps) {
      StartPiece();
      StartLayer();
      now_ = std::min(computing_until_, communicating_until_);
      if (communicating_until_ <= now_) FinishPiece();
      if (computing_until_ <= now_ && FinishLayer()) ends.push_back(now_);
    }
    return (ends[kSteps - 1] - ends[kForgotten - 1]) / (kSteps - kForgotten);
  }

 private:
  // Layer of the bucket, number of its posting, the bucket, whether it is the all-gather.
  using Piece = std::tuple<int, int, size_t, bool>;

  bool forward() const { return task_ < model_.layers.size(); }
  size_t layer() const { return forward() ? task_ : 2 * model_.layers.size() - 1 - task_; }

  void Post(size_t bucket, bool gather) {
    ready_.emplace(model_.buckets[bucket].layer, posted_++, bucket, gather);
  }

  void StartPiece() {
    if (communicating_until_ != kNever || ready_.empty()) return;
    running_ = *ready_.begin();
    ready_.erase(ready_.begin());
    const StepModel::Bucket& bucket = model_.buckets[std::get<2>(running_)];
    const bool gather = std::get<3>(running_);
    const bool updates = gather == model_.update_together;
    communicating_until_ =
        now_ + (gather ? bucket.all_gather : bucket.reduce_scatter) + (updates ? bucket.update : 0);
  }

  void FinishPiece() {
    communicating_until_ = kNever;
    const auto [layer, number, bucket, gather] = running_;
    if (gather) {
      ++gathered_[bucket];
      return;
    }
    if (!model_.update_together) return Post(bucket, true);
    if (++reduced_ < model_.buckets.size()) return;
    reduced_ = 0;
    for (size_t b = 0; b < model_.buckets.size(); ++b) Post(b, true);
  }

  void StartLayer() {
    if (computing_until_ != kNever) return;
    const StepModel::Layer& times = model_.layers[layer()];
    if (forward()) {
      // Step 0 has its weights.
      for (const size_t bucket : waits_[layer()]) {
        if (gathered_[bucket] < step_) return;
      }
    }
    computing_until_ = now_ + (forward() ? times.forward : times.backward);
  }

  // True at the end of a step.
  bool FinishLayer() {
    computing_until_ = kNever;
    if (!forward()) {
      for (const size_t bucket : waits_[layer()]) Post(bucket, false);
    }
    if (++task_ < 2 * model_.layers.size()) return false;
    task_ = 0;
    ++step_;
    return true;
  }

  const StepModel& model_;
  double now_ = 0;
  // The computing thread: the task that it does or waits to do, layers forward and then backward.
  int step_ = 0;
  size_t task_ = 0;
  double computing_until_ = kNever;
  // The communicating thread.
  std::set<Piece> ready_;
  Piece running_;
  double communicating_until_ = kNever;
  int posted_ = 0;
  // Buckets that are reduced but not updated, where they wait for all.
  size_t reduced_ = 0;
  // By bucket: all-gathers done.
  std::vector<int> gathered_;
  // By layer: buckets that it finishes in backward and waits for in forward.
  std::vector<std::vector<size_t>> waits_;
};

}  // namespace

StepTime OverlapRecurrence(std::span<const LayerTimes> layers) {
  StepTime time;
  double computed = 0;
  for (const LayerTimes& layer : layers) {
    computed += layer.forward;
    time.serial += layer.forward + layer.backward + layer.communication;
  }
  double communicated = 0;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    computed += layer->backward;
    communicated = std::max(computed, communicated) + layer->communication;
  }
  time.seconds = communicated;
  time.exposed = communicated - computed;
  return time;
}

StepTime OverlappedStep(const StepModel& model) {
  StepTime time;
  if (model.layers.empty()) return time;
  double computing = 0;
  for (const StepModel::Layer& layer : model.layers) computing += layer.forward + layer.backward;
  time.serial = computing;
  for (const StepModel::Bucket& bucket : model.buckets) {
    time.serial += bucket.reduce_scatter + bucket.update + bucket.all_gather;
  }
  time.seconds = Player(model).Run();
  time.exposed = std::max(0.0, time.seconds - computing);
  return time;
}

}  // namespace cadre
