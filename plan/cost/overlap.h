// The length of a training step whose communication overlaps with its computation.
//
// Two models: OverlapRecurrence is that of data parallel training that all-reduces every layer and
// then starts the next step. OverlappedStep is what Cadre executes: weights are gathered while the
// next forward is already running.
//
// Both assume:
//   - all ranks do the same at the same time, so one rank represents all;
//   - a rank computes on one thread, layer by layer, forward from the front and backward from the
//     back; exchanges of activations (halos, moves between layouts) are part of a layer's times;
//   - one other thread communicates, one operation at a time without preemption; computing and
//     communicating do not slow each other down.
//
// Source of the recurrence: layer overlapping of Kim, Yeo, Oh 2021, derived from the algorithm.
//
// Thread-safe (pure functions over values).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cadre {

struct StepTime {
  // Between the ends of two steps.
  double seconds = 0;
  // The part of them in which the computing thread waits for communication.
  double exposed = 0;
  // Without any overlap.
  double serial = 0;
};

// --- A step that all-reduces each layer ---

// Seconds of one layer.
struct LayerTimes {
  double forward = 0;
  double backward = 0;
  double communication = 0;
};

// Layers from first to last, 1 to L. A layer's all-reduce begins when its backward is done and the
// all-reduce of the layer after it has ended; the step ends with that of the first layer:
//   e_L = sum of forward + backward_L, e_(l-1) = e_l + backward_(l-1)
//   c_l = max(e_l, c_(l+1)) + communication_l, c_(L+1) = 0
//   seconds = c_1, exposed = c_1 - e_1
StepTime OverlapRecurrence(std::span<const LayerTimes> layers);

// --- A step whose weights are owned in slices ---

struct StepModel {
  struct Layer {
    double forward = 0;
    double backward = 0;
  };
  struct Bucket {
    // Its first layer: the last one that backward reaches, and the first one whose forward needs
    // the bucket.
    int layer = 0;
    double reduce_scatter = 0;
    // The owners' update, which the communicating thread performs after the reduce-scatter.
    double update = 0;
    double all_gather = 0;
  };
  // First to last.
  std::vector<Layer> layers;
  std::vector<Bucket> buckets;
  // No update before every bucket is reduced (clipping by the norm of all gradients): the updates
  // are then part of the pieces of the all-gathers.
  bool update_together = false;
};

// The steady state. A bucket has two operations: a reduce-scatter, ready when the backward of its
// layer is done, and an all-gather, ready when the bucket is updated, for which the forward of that
// layer in the next step waits. Of the ready operations, the one whose layer comes first in forward
// runs first; among equals, the one that was ready first. Requires: times >= 0;
// 0 <= layer < layers.size().
StepTime OverlappedStep(const StepModel& model);
// The same operations without any overlap.
StepTime SerialStep(const StepModel& model);

}  // namespace cadre
