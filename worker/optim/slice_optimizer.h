// The optimizer of one slice, the interval of a bucket that this rank owns: SGD with momentum,
// AdamW or LARS, with state in device memory. slice_optimizer.cc explains the sharding.
//
// Weights decay; biases and the scales and shifts of norms decay only with decay_all. Running
// statistics follow the statistics of the batch, w += momentum * (g - w), and are not clipped,
// decayed or counted in norms.
//
// Movable; thread-compatible. Borrows the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/backend.h"
#include "kernels/optimizer_step.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/ownership.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/interval.h"
#include "worker/optim/step_norms.h"

namespace cadre {

// By position in the index: the momentum of running statistics, from their layers' settings; 0 for
// trained parameters. Requires: the index is the graph's.
std::vector<float> StatisticMomenta(const Graph& graph, const ParameterIndex& index);

class SliceOptimizer {
 public:
  // Requires: kernels outlive the object; `bucket` is of `index`; `statistic_momenta` as above.
  SliceOptimizer(Backend& kernels, const v1::Optimizer& optimizer, const ParameterIndex& index,
                 std::span<const float> statistic_momenta, const BucketOwnership& bucket);

  // In all methods both spans are the slice [bucket.slice_begin(), bucket.slice_end()), in device
  // memory. Gradients are the gradients of the mean loss over the group's batch; for running
  // statistics they are the statistics of the batch.

  // Adds this slice's sums to `norms`.
  void AddNorms(std::span<const float> gradients, std::span<const float> weights,
                StepNorms& norms) const;
  // One update: BeginUpdate, then UpdatePart for intervals that partition [0, size of the slice),
  // in any order. Requires: `norms` is summed over the group.
  void BeginUpdate() { ++updates_; }
  void UpdatePart(Interval part, float rate, const StepNorms& norms,
                  std::span<const float> gradients, std::span<float> weights);
  // One update of the whole slice.
  void Update(float rate, const StepNorms& norms, std::span<const float> gradients,
              std::span<float> weights) {
    BeginUpdate();
    UpdatePart({0, size_}, rate, norms, gradients, weights);
  }

  // --- for devices -------------------------------------------------------------------------------
  // As AddNorms, enqueued. `sums`: device memory, laid out as StepNorms::sums().
  void AddNormsAsync(std::span<const float> gradients, std::span<const float> weights,
                     std::span<double> sums);
  // Device memory: see UpdateGuard. `squares`: null without clipping.
  struct Guard {
    const double* loss = nullptr;
    const double* squares = nullptr;
  };
  // Enqueues one update, with the rate and number of SliceKernels::SetUpdate. The update changes
  // nothing unless the loss is finite; when the caller knows that the loss is finite, it calls
  // BeginUpdate. Requires: the optimizer uses no norms of tensors.
  void UpdateAsync(const Guard& guard, std::span<const float> gradients, std::span<float> weights);

  // --- for checkpoints ---------------------------------------------------------------------------
  // In the order of OptimizerStateNames; each has the slice's length and order. The state of
  // running statistics stays zero.
  int states() const { return std::ssize(state_); }
  std::span<float> state(int i) { return state_[i].span(); }
  // Updates since the state was zero. Part of the state: lower than the run's step count in a group
  // that joined late. The elements whose state began later have made fewer.
  int64_t updates() const { return updates_; }
  // Elements of the slice and their updates.
  struct Counted {
    Interval elements;
    int64_t updates = 0;
  };
  // In the order of the elements; they cover the slice.
  std::vector<Counted> CountedUpdates() const;
  // `fewer`: disjoint elements, in order, that have made fewer than `updates`. Requires: no step is
  // recorded.
  void SetUpdates(int64_t updates, std::span<const Counted> fewer);

  int64_t state_bytes() const { return states() * size_ * 4; }

 private:
  // Elements of the slice that belong to one parameter.
  struct Segment {
    int parameter = 0;
    Interval elements;
    bool decays = false;
    // Not trained: follows the statistics of the batch with `momentum`.
    bool statistic = false;
    float momentum = 0;
    // As in SliceSegment.
    int64_t before = 0;
  };
  void MakeSegments(const ParameterIndex& index, std::span<const float> statistic_momenta,
                    const BucketOwnership& bucket);
  void MakeTable();
  // The step of one update of a segment. `scale`: norms.GradientScale().
  OptimizerStep StepFor(const Segment& segment, float rate, double scale,
                        const StepNorms& norms) const;
  // Elements of all state tensors.
  std::vector<std::span<float>> StatesWithin(Interval elements) const;

  Backend* kernels_;
  v1::Optimizer optimizer_;
  // The settings of the run; StepFor adds what changes from update to update.
  OptimizerStep step_;
  bool uses_tensor_norms_;
  std::vector<Segment> segments_;
  int64_t size_ = 0;
  std::vector<DeviceArray<float>> state_;
  // Segments of the slice in device memory; null on the host, and if the optimizer uses norms of
  // tensors.
  std::unique_ptr<SegmentTable> table_;
  int64_t updates_ = 0;
};

}  // namespace cadre
