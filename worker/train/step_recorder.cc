// Captures and replays the phases of a step.
//
// Enqueuing a step of a small model takes the host longer than the device needs to execute it. So
// when a phase is executed for the second time, it is captured into a graph (a "recording"). From
// the third time on, one launch of the graph replaces all calls of the phase (CUDA programming
// guide, "CUDA Graphs"; PyTorch's make_graphed_callables).
//
// A graph repeats addresses and arguments, so whatever changes from step to step lies in memory
// that the kernels read when they run: the batch (Network::Load copies it to fixed memory), its
// position, and the rate and number of the update (PointwiseKernels::SetPosition,
// SliceKernels::SetUpdate). Everything else that decides what is enqueued is the key of a
// recording: the phase, the sizes and scales of Shape, and the state of the bucket schedule before
// the phase. After a replay, the schedule is set to the state that it had after the captured phase.
// A step needs two recordings, or up to six with micro-batches. When there are kMaxRecordings,
// further phases are enqueued as usual.
//
// Work on the communication stream is part of a phase: Fork joins that stream into the capture, and
// Join ends its part. Enter and Leave order the phase with earlier and later work, because a
// capture must not wait for events that were recorded outside of it.
//
// Limits. Only groups of one rank use recordings. NCCL accepts a captured operation only if all its
// ranks captured it and all launch the graph of the same capture. But whether a phase is captured
// or replayed depends on facts of one rank: its observers and traces, whether its memory moved,
// whether a capture failed. Ranks of a group would have to agree, for example by a flag added to
// the sum of the loss, with which each step learns whether all ranks can capture or replay the next
// one. If a capture fails, it is counted, its reason is kept for the status, and no other capture
// is tried.
#include "worker/train/step_recorder.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

int StepRecorder::recordings() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry->recording != nullptr; });
}

absl::Status StepRecorder::Run(const Shape& shape, const std::function<absl::Status()>& work) {
  if (refused_ > 0 || !device_.can_capture() || !flow_.can_capture()) return work();
  Recorded* const entry = Find(shape);
  // The first run creates what the work needs: scratch memory, library plans, kernels.
  if (entry == nullptr || !std::exchange(entry->warm, true)) return work();
  if (entry->recording == nullptr) {
    CADRE_RETURN_IF_ERROR(Record(*entry, work));
    if (refused_ > 0) return work();
  }
  Play(*entry);
  return device_.status();
}

StepRecorder::Recorded* StepRecorder::Find(const Shape& shape) {
  // Recordings from before memory moved refer to freed memory.
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [&](const auto& entry) {
                                  return entry->shape.memory_moves != shape.memory_moves;
                                }),
                 entries_.end());
  for (const auto& entry : entries_) {
    if (entry->shape == shape && entry->before == flow_.schedule().state()) return entry.get();
  }
  if (entries_.size() == kMaxRecordings) return nullptr;
  entries_.push_back(std::make_unique<Recorded>());
  entries_.back()->shape = shape;
  entries_.back()->before = flow_.schedule().state();
  return entries_.back().get();
}

absl::Status StepRecorder::Record(Recorded& entry, const std::function<absl::Status()>& work) {
  flow_.Enter();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> made = device_.CaptureGraph([&] {
    flow_.Fork();
    CADRE_RETURN_IF_ERROR(work());
    flow_.Join();
    return absl::OkStatus();
  });
  entry.after = flow_.schedule().state();
  if (made.ok() && *made != nullptr) {
    entry.recording = *std::move(made);
    return absl::OkStatus();
  }
  // The work was not executed, so the caller still has to run it.
  flow_.schedule().set_state(entry.before);
  flow_.Leave(/*with_loss=*/false);
  ++refused_;
  refusal_ = made.ok() ? device_.capture_refusal() : std::string(made.status().message());
  entries_.clear();
  LOG(WARNING) << "steps cannot be recorded and are enqueued one operation at a time: " << refusal_;
  return device_.status();
}

void StepRecorder::Play(Recorded& entry) {
  flow_.Enter();
  device_.LaunchGraph(*entry.recording);
  flow_.schedule().set_state(entry.after);
  flow_.Leave(entry.shape.phase == Phase::kForward && entry.before.last_forward);
  ++played_;
}

}  // namespace cadre
