// Overlap of communication with computation.
//
// OverlapRecurrence is the layer overlapping of Kim, Yeo and Oh (2021): all-reduces run in the
// order in which backward produces gradients, and the next step begins after the last one. Time
// linear in layers.
//
// Cadre owns weights in slices, as in ZeRO (Rajbhandari et al., SC 2020): a bucket is
// reduce-scattered, each owner updates its slice, and the slices are gathered. The gather is needed
// only when the next forward reaches the bucket's first layer, so it may run during that forward.
// Ready operations are ordered by that layer, as in priority-based parameter propagation (Jayarajan
// et al., MLSys 2019): what forward needs first is sent first. This order makes a recurrence over
// layers impossible, because what is ready depends on time; so the step is simulated.
//
// StepSimulation has two clocks, one per thread. Each iteration starts the operations that can
// start on an idle thread and advances to the earlier of the two ends. Operations are not
// preempted; small chunks of buckets (plan/plan_collectives.h) reduce the resulting priority
// inversion. Several steps are simulated in a row, since the end of one step's communication
// overlaps with the next step's forward; the result is the mean over the steps after a warm-up.
// Cost: kSteps times (layers + buckets log buckets).
//
// Limits: one rank represents all, and the threads do not slow each other down
// (plan/search/prediction.h adds that).
#include "plan/cost/overlap.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <tuple>

namespace cadre {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// The mean is taken over the steps after the warm-up, which the initial state does not affect.
constexpr int kSteps = 64;
constexpr int kWarmUpSteps = 32;

// Simulates steps event by event.
class StepSimulation {
 public:
  explicit StepSimulation(const StepModel& model)
      : model_(model), gathered_(model.buckets.size(), 0), waits_(model.layers.size()) {
    for (size_t b = 0; b < model.buckets.size(); ++b) {
      waits_[model.buckets[b].layer].push_back(b);
    }
  }

  // The mean seconds of a step.
  double Run() {
    std::vector<double> ends;
    while (step_ < kSteps) {
      StartOperation();
      StartLayer();
      now_ = std::min(computing_until_, communicating_until_);
      if (communicating_until_ <= now_) FinishOperation();
      if (computing_until_ <= now_ && FinishLayer()) ends.push_back(now_);
    }
    return (ends[kSteps - 1] - ends[kWarmUpSteps - 1]) / (kSteps - kWarmUpSteps);
  }

 private:
  // In order of priority: layer of the bucket, sequence number, bucket, whether it is the
  // all-gather.
  using Operation = std::tuple<int, int, size_t, bool>;

  bool forward() const { return task_ < model_.layers.size(); }
  size_t layer() const { return forward() ? task_ : 2 * model_.layers.size() - 1 - task_; }

  void Post(size_t bucket, bool gather) {
    ready_.emplace(model_.buckets[bucket].layer, posted_++, bucket, gather);
  }

  void StartOperation() {
    if (communicating_until_ != kNever || ready_.empty()) return;
    running_ = *ready_.begin();
    ready_.erase(ready_.begin());
    const StepModel::Bucket& bucket = model_.buckets[std::get<2>(running_)];
    const bool gather = std::get<3>(running_);
    const bool updates = gather == model_.update_together;
    communicating_until_ =
        now_ + (gather ? bucket.all_gather : bucket.reduce_scatter) + (updates ? bucket.update : 0);
  }

  void FinishOperation() {
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
    const LayerSeconds& times = model_.layers[layer()];
    if (forward()) {
      // The weights of step 0 are present from the start.
      for (const size_t bucket : waits_[layer()]) {
        if (gathered_[bucket] < step_) return;
      }
    }
    computing_until_ = now_ + (forward() ? times.forward : times.backward);
  }

  // Returns true at the end of a step.
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
  // The computing thread: its current or next task; tasks are the layers forward, then backward.
  int step_ = 0;
  size_t task_ = 0;
  double computing_until_ = kNever;
  // The communicating thread.
  std::set<Operation> ready_;
  Operation running_;
  double communicating_until_ = kNever;
  int posted_ = 0;
  // With update_together: buckets that are reduced but not updated.
  size_t reduced_ = 0;
  // By bucket: completed all-gathers.
  std::vector<int> gathered_;
  // By layer: the buckets that its backward completes and its forward waits for.
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

StepTime SerialStep(const StepModel& model) {
  StepTime time;
  for (const LayerSeconds& layer : model.layers) time.serial += layer.forward + layer.backward;
  const double computing = time.serial;
  for (const StepModel::Bucket& bucket : model.buckets) {
    time.serial += bucket.reduce_scatter + bucket.update + bucket.all_gather;
  }
  time.seconds = time.serial;
  time.exposed = time.serial - computing;
  return time;
}

StepTime OverlappedStep(const StepModel& model) {
  StepTime time = SerialStep(model);
  if (model.layers.empty()) return time;
  const double computing = time.serial - time.exposed;
  time.seconds = StepSimulation(model).Run();
  time.exposed = std::max(0.0, time.seconds - computing);
  return time;
}

}  // namespace cadre
