// The duration of a training step whose communication overlaps with its computation.
//
// There are two models. OverlapRecurrence models data parallel training that all-reduces every
// layer and then starts the next step. OverlappedStep models what Cadre executes: weights are
// gathered while the next forward is already running.
//
// Both assume:
//   - all ranks do the same at the same time, so one rank represents all;
//   - a rank computes on one thread, layer by layer, forward from the first layer to the last and
//     backward in reverse order; exchanges of activations (halos, moves between layouts) are part
//     of a layer's times;
//   - one other thread communicates, one operation at a time without preemption; computing and
//     communicating do not slow each other down.
//
// Source of the recurrence: layer overlapping of Kim, Yeo, Oh 2021, derived from the algorithm.
//
// Thread-safe (pure functions over values).
#pragma once

#include <span>
#include <vector>

namespace cadre {

// The duration of a step.
struct StepTime {
  // From the end of one step to the end of the next.
  double seconds = 0;
  // The part of this time in which the computing thread waits for communication.
  double exposed = 0;
  // The time without any overlap.
  double serial = 0;
};

// --- A step that all-reduces each layer ---

// Seconds of one layer.
struct LayerTimes {
  double forward = 0;
  double backward = 0;
  double communication = 0;
};

// Layers are in forward order, 1 to L. A layer's all-reduce begins when its backward is done and
// the next layer's all-reduce has ended. The step ends with the all-reduce of the first layer:
//   e_L = sum of forward + backward_L, e_(l-1) = e_l + backward_(l-1)
//   c_l = max(e_l, c_(l+1)) + communication_l, c_(L+1) = 0
//   seconds = c_1, exposed = c_1 - e_1
StepTime OverlapRecurrence(std::span<const LayerTimes> layers);

// --- A step whose weights are owned in slices ---

struct LayerSeconds {
  double forward = 0;
  double backward = 0;
};

// The operations of a step, with their seconds.
struct StepModel {
  struct Bucket {
    // The bucket's first layer: backward completes the bucket there, and forward needs it from
    // there on.
    int layer = 0;
    double reduce_scatter = 0;
    // The owners' update, which the communicating thread performs after the reduce-scatter.
    double update = 0;
    double all_gather = 0;
  };
  // In forward order.
  std::vector<LayerSeconds> layers;
  std::vector<Bucket> buckets;
  // Whether updates wait until every bucket is reduced (clipping by the norm of all gradients).
  // Each update then runs together with the all-gather of its bucket.
  bool update_together = false;
};

// The steady state. A bucket has two operations: a reduce-scatter, which is ready when the backward
// of its layer is done, and an all-gather, which is ready when the bucket is updated. The forward
// of that layer in the next step waits for the all-gather. Of the ready operations, the one whose
// layer comes first in forward runs first; for the same layer, the one that was ready first.
// Requires: times >= 0; 0 <= layer < layers.size().
StepTime OverlappedStep(const StepModel& model);
// The same operations without any overlap.
StepTime SerialStep(const StepModel& model);

}  // namespace cadre
