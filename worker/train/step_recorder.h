// Plays halves of a training step from recordings (CUDA graphs): a forward with the gathers that it
// waits for, or a backward with the reductions and updates that follow it.
//
// A half is done as usual the first time, so that everything it needs is made; then it is recorded,
// and from then on played. What changes from step to step is not in it: the batch lies in a fixed
// place (Network::Load), position, rate and number of the update are read by kernels when they run
// (Kernels::SetPosition, SetUpdate). Halves that differ in anything else (samples, scale, share, or
// what the flow does in them) have recordings of their own, at most kMostRecordings; further ones
// are done as usual.
//
// Where a half cannot be recorded, that is logged once and nothing is recorded any more.
//
// Only for ranks that are alone. NCCL takes a captured operation only if all its ranks captured it,
// and all then launch the graph of the same capture; but whether a half is recorded or played is
// decided here by one rank, from what only it knows: who observes it, which trace came to it and
// when, whether its memory moved, whether it gave up. Ranks that share communicators would have to
// agree on it: a number that each rank adds to the sum of the group's loss, so that all learn with
// the loss of one step whether all can record, or play, in the step after.
//
// Borrows device and flow; must be gone before them. Thread-compatible: the rank's own thread, on
// the lane for computing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "device/device.h"
#include "worker/train/stream_flow.h"

namespace cadre {

class StepRecorder {
 public:
  static constexpr int kMostRecordings = 32;

  enum class Half : uint8_t { kForward, kBackward };
  struct Shape {
    Half half = Half::kForward;
    int64_t samples = 0;
    float loss_scale = 0;
    double share = 0;
    // Network::memory_moves(): where memory has moved, recordings are void.
    int64_t memory_moves = 0;
    friend bool operator==(const Shape&, const Shape&) = default;
  };

  StepRecorder(Device& device, StreamFlow& flow) : device_(device), flow_(flow) {}

  // Does the work, or plays what was recorded of it.
  absl::Status Run(const Shape& shape, const std::function<absl::Status()>& work);
  int recordings() const;
  // Halves played from a recording.
  int64_t played() const { return played_; }

 private:
  struct Recorded {
    Shape shape;
    StreamFlow::Progress before;
    StreamFlow::Progress after;
    // Was done once.
    bool known = false;
    std::unique_ptr<DeviceRecording> recording;
  };

  // Null: there is none, and no room for one.
  Recorded* Find(const Shape& shape);
  absl::Status Record(Recorded& piece, const std::function<absl::Status()>& work);
  void Play(Recorded& piece);

  Device& device_;
  StreamFlow& flow_;
  bool gave_up_ = false;
  int64_t played_ = 0;
  std::vector<std::unique_ptr<Recorded>> pieces_;
};

}  // namespace cadre
