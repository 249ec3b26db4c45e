// How long a training step takes when its communication goes on beside its computation.
//
// Two models. OverlapRecurrence is the one of data parallel training that all-reduces every layer
// and then starts the next step. OverlappedStep is what Cadre executes, where weights are gathered
// while the next forward is on its way already.
//
// Both assume:
//   - all ranks do the same at the same time, so one rank stands for all;
//   - a rank computes on one thread, layer by layer, forward from the front and backward from the
//     back; exchanges of activations (halos, moves between layouts) are part of a layer's times;
//   - one other thread communicates, one piece after the other, and never stops in the middle of
//     one; computing and communicating do not slow each other down.
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
  // From one step to the next.
  double seconds = 0;
  // Of these, what the computing thread waits for communication.
  double exposed = 0;
  // If everything were done one after the other.
  double serial = 0;
};

// --- A step that all-reduces each layer ---

// Seconds of one layer.
struct LayerTimes {
  double forward = 0;
  double backward = 0;
  double communication = 0;
};

// Layers from the front to the back, 1 to L. A layer's all-reduce begins when its backward is done
// and the all-reduce of the layer behind it is over; the step ends with that of the first:
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
    // Its first layer: backward finishes the bucket with it, and the next forward needs the bucket
    // there first.
    int layer = 0;
    double reduce_scatter = 0;
    // The owners' update, on the communicating thread, as part of the piece of the reduce-scatter.
    double update = 0;
    double all_gather = 0;
  };
  // Front to back.
  std::vector<Layer> layers;
  std::vector<Bucket> buckets;
  // No update before every bucket is reduced (clipping by the norm of all gradients): the updates
  // are then part of the pieces of the all-gathers.
  bool update_together = false;
};

// The mean over steps in the long run. Pieces of a bucket: a reduce-scatter, ready when the
// backward of its layer is done; then an all-gather, ready when it is updated, which the forward of
// that layer in the next step waits for. Of the pieces that are ready, the one whose layer comes
// first in forward goes first; of equal ones, what was ready first. Requires: times >= 0; 0 <=
// layer < layers.size().
StepTime OverlappedStep(const StepModel& model);

}  // namespace cadre
