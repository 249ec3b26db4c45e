#include "worker/train/step_recorder.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "glog/logging.h"

namespace cadre {

int StepRecorder::recordings() const {
  return static_cast<int>(std::count_if(pieces_.begin(), pieces_.end(), [](const auto& piece) {
    return piece->recording != nullptr;
  }));
}

absl::Status StepRecorder::Run(const Shape& shape, const std::function<absl::Status()>& work) {
  if (gave_up_ || !device_.can_record() || !flow_.can_record()) return work();
  Recorded* const piece = Find(shape);
  // The first time makes what the work needs.
  if (piece == nullptr || !std::exchange(piece->known, true)) return work();
  if (piece->recording == nullptr) {
    CADRE_RETURN_IF_ERROR(Record(*piece, work));
    if (gave_up_) return work();
  }
  Play(*piece);
  return device_.status();
}

StepRecorder::Recorded* StepRecorder::Find(const Shape& shape) {
  // Memory has moved: what was recorded before would touch what is gone.
  pieces_.erase(std::remove_if(pieces_.begin(), pieces_.end(),
                               [&](const auto& piece) {
                                 return piece->shape.memory_moves != shape.memory_moves;
                               }),
                pieces_.end());
  for (const auto& piece : pieces_) {
    if (piece->shape == shape && piece->before == flow_.progress()) return piece.get();
  }
  if (pieces_.size() == kMostRecordings) return nullptr;
  pieces_.push_back(std::make_unique<Recorded>());
  pieces_.back()->shape = shape;
  pieces_.back()->before = flow_.progress();
  return pieces_.back().get();
}

absl::Status StepRecorder::Record(Recorded& piece, const std::function<absl::Status()>& work) {
  flow_.Enter();
  absl::StatusOr<std::unique_ptr<DeviceRecording>> made = device_.RecordWork([&] {
    flow_.Fork();
    CADRE_RETURN_IF_ERROR(work());
    flow_.Join();
    return absl::OkStatus();
  });
  piece.after = flow_.progress();
  if (made.ok() && *made != nullptr) {
    piece.recording = *std::move(made);
    return absl::OkStatus();
  }
  // Nothing was done, so it is still to do.
  flow_.set_progress(piece.before);
  flow_.Leave(/*with_loss=*/false);
  gave_up_ = true;
  pieces_.clear();
  LOG(WARNING) << "steps are enqueued anew each time, for they cannot be recorded: "
               << (made.ok() ? absl::InternalError("the device kept nothing") : made.status());
  return device_.status();
}

void StepRecorder::Play(Recorded& piece) {
  flow_.Enter();
  device_.Play(*piece.recording);
  flow_.set_progress(piece.after);
  flow_.Leave(piece.shape.half == Half::kForward && piece.before.last_pass);
  ++played_;
}

}  // namespace cadre
