#include "worker/train/tape_trace.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace cadre {
namespace {

const char* NameOf(TapeOpKind kind) {
  switch (kind) {
    case TapeOpKind::kMove:
      return "move to";
    case TapeOpKind::kForward:
      return "forward";
    case TapeOpKind::kLoss:
      return "loss";
    case TapeOpKind::kBackward:
      return "backward";
    case TapeOpKind::kMoveGradient:
      return "move gradient of";
    case TapeOpKind::kAdd:
      return "add at";
  }
  return "";
}

bool Moves(const TapeOp& op) {
  return op.kind == TapeOpKind::kMove || op.kind == TapeOpKind::kMoveGradient;
}

}  // namespace

void TapeTrace::Played(const Tape& /*tape*/, const TapeOp& op, absl::Time begin, double seconds) {
  if (!trace_.on()) return;
  const absl::Duration duration = absl::Seconds(seconds);
  trace_.Add({.name = absl::StrCat(NameOf(op.kind), " ", graph_[op.layer].name),
              .category = Moves(op) ? "move" : "compute",
              .track = 0,
              .begin_us = absl::ToUnixMicros(begin),
              .duration_us = absl::ToInt64Microseconds(duration),
              .bytes = Moves(op) ? op.move.elements_sent() * 4 : -1,
              .step = step_});
}

}  // namespace cadre
