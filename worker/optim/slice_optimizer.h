// The optimiser of one slice: the part of a bucket that this rank owns.
//
// State exists only here, with the owner of the slice; it is neither replicated nor averaged across
// groups. Every element is treated by itself (norms come from outside, see step_norms.h), so any
// cut of a model into slices and buckets computes the same.
//
// By the parameter's role: weights decay, biases and norms' scales and shifts only if the optimiser
// says decay_all. Running statistics are drawn towards the batch's, w += momentum * (g - w), and
// are neither clipped nor decayed nor counted in norms.
//
// State lies in the memory of the kernels' device. On the host, updates are made part by part; on
// other devices the whole slice is updated by work that is enqueued (Kernels::UpdateSlice), and
// what it depends on is read from the device's memory. LARS, whose rates are by tensor, is updated
// by UpdatePart on all of them.
//
// Movable; thread-compatible. Borrows the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "worker/optim/step_norms.h"

namespace cadre {

// By position in the index: the momentum of running statistics, from their layers' settings; 0 for
// what is trained. Requires: the index is the graph's.
std::vector<float> StatisticMomenta(const Graph& graph, const ParameterIndex& index);

class SliceOptimizer {
 public:
  // Requires: kernels outlive the object; `bucket` is of `index`; `statistic_momenta` as above.
  SliceOptimizer(Kernels& kernels, const v1::Optimizer& optimizer, const ParameterIndex& index,
                 std::span<const float> statistic_momenta, const BucketOwnership& bucket);

  // In all that follows: both spans are the slice [bucket.slice_begin(), bucket.slice_end()).
  // Gradients are of the mean loss over the group's batch; those of running statistics are the
  // batch's statistics. They are in the memory of the kernels' device.

  // Adds this slice's part to `norms`.
  void AddNorms(std::span<const float> gradients, std::span<const float> weights,
                StepNorms& norms) const;
  // One update, part by part: BeginUpdate, then UpdatePart for parts [begin, end) of the slice that
  // together are all of it, in any order. Requires: `norms` is summed over the group.
  void BeginUpdate() { ++updates_; }
  void UpdatePart(size_t begin, size_t end, float rate, const StepNorms& norms,
                  std::span<const float> gradients, std::span<float> weights);
  // One update at once.
  void Update(float rate, const StepNorms& norms, std::span<const float> gradients,
              std::span<float> weights) {
    BeginUpdate();
    UpdatePart(0, size_, rate, norms, gradients, weights);
  }

  // --- for devices -------------------------------------------------------------------------------
  // As AddNorms, enqueued, into `sums`: a device's memory, laid out as StepNorms::sums().
  void AddNormsLater(std::span<const float> gradients, std::span<const float> weights,
                     std::span<double> sums);
  // What an update depends on, in the device's memory: see SliceUpdate. `squares`: null without
  // clipping.
  struct Guard {
    const double* loss = nullptr;
    const double* squares = nullptr;
  };
  // One update, enqueued; its rate and number are those of Kernels::SetUpdate. Whether it was made
  // is known with the loss: whoever learns that it was calls BeginUpdate. Requires: not LARS.
  void UpdateLater(const Guard& guard, std::span<const float> gradients, std::span<float> weights);

  // --- for checkpoints ---------------------------------------------------------------------------
  // In the order of OptimizerStateNames; each of the slice's length and order. Those of running
  // statistics stay zero.
  int states() const { return static_cast<int>(state_.size()); }
  std::span<float> state(int i) { return state_[static_cast<size_t>(i)].span(); }
  // Updates since the state was zero. A part of the state: it may be fewer than the run's steps,
  // where a group joined late and began with none.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  // Bytes of state.
  int64_t state_bytes() const;

 private:
  // Elements [begin, begin + count) of the slice belong to one parameter.
  struct Segment {
    int parameter = 0;
    size_t begin = 0;
    size_t count = 0;
    bool decays = false;
    // Not trained but drawn towards the batch's statistics, by `momentum`.
    bool statistic = false;
    float momentum = 0;
  };
  // Elements [begin, end) of the slice, which one table of segments describes.
  struct Table {
    size_t begin = 0;
    size_t end = 0;
    std::unique_ptr<SegmentTable> segments;
  };
  void MakeSegments(const ParameterIndex& index, std::span<const float> statistic_momenta,
                    const BucketOwnership& bucket);
  // Empty on the host.
  void MakeTables();
  // Draws elements [begin, end), all of one running statistic, towards the batch's.
  void DrawTowards(size_t begin, size_t end, float momentum, std::span<const float> batch,
                   std::span<float> running);
  // What one step is for a segment.
  SgdStep SgdFor(const Segment& segment, float rate, double scale) const;
  SgdStep LarsFor(const Segment& segment, float rate, double scale, const StepNorms& norms) const;
  AdamWStep AdamWFor(const Segment& segment, float rate, double scale) const;

  Kernels* kernels_;
  v1::Optimizer optimizer_;
  std::vector<Segment> segments_;
  size_t size_ = 0;
  std::vector<DeviceArray<float>> state_;
  // On devices: of the whole slice, or, under LARS, of each running statistic.
  std::vector<Table> tables_;
  int64_t updates_ = 0;
};

}  // namespace cadre
