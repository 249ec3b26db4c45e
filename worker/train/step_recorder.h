// Captures the phases of a training step as CUDA graphs ("recordings") and replays them. A phase is
// a forward with the gathers that it waits for, or a backward with the reductions and updates that
// follow it. step_recorder.cc explains what is captured, and why only groups of one rank do so.
//
// Borrows device and flow; must be destroyed before them. Thread-compatible: the rank's own thread
// calls, and the compute stream is its current stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "device/device.h"
#include "worker/train/stream_flow.h"

namespace cadre {

class StepRecorder {
 public:
  static constexpr int kMaxRecordings = 32;

  enum class Phase : uint8_t { kForward, kBackward };
  // What identifies a phase, together with the state of the flow.
  struct Shape {
    Phase phase = Phase::kForward;
    // The arguments of Network::PlayForward.
    int64_t samples = 0;
    float loss_scale = 0;
    double share = 0;
    // Network::memory_moves(): recordings become invalid when memory moves.
    int64_t memory_moves = 0;
    friend bool operator==(const Shape&, const Shape&) = default;
  };

  StepRecorder(Device& device, StreamFlow& flow) : device_(device), flow_(flow) {}

  // Runs `work`, or replays its recording.
  absl::Status Run(const Shape& shape, const std::function<absl::Status()>& work);
  int recordings() const;
  // Number of phases that were replayed from a recording.
  int64_t played() const { return played_; }
  // Number of captures that were refused, and the reason of the last one. After the first, phases
  // are enqueued one operation at a time.
  int refused() const { return refused_; }
  const std::string& refusal() const { return refusal_; }

 private:
  struct Recorded {
    Shape shape;
    BucketSchedule::State before;
    BucketSchedule::State after;
    // The phase ran once without being captured.
    bool warm = false;
    std::unique_ptr<DeviceGraph> recording;
  };

  // Returns the entry of the phase, which is added if there is none. Null: there are kMaxRecordings
  // already.
  Recorded* Find(const Shape& shape);
  absl::Status Record(Recorded& entry, const std::function<absl::Status()>& work);
  void Play(Recorded& entry);

  Device& device_;
  StreamFlow& flow_;
  int refused_ = 0;
  std::string refusal_;
  int64_t played_ = 0;
  std::vector<std::unique_ptr<Recorded>> entries_;
};

}  // namespace cadre
