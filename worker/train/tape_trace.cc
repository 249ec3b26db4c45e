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
  constexpr int64_t kWordBytes = 4;
  trace_.Add({.name = absl::StrCat(NameOf(op.kind), " ", graph_[op.layer].name),
              .category = Moves(op) ? "move" : "compute",
              .track = 0,
              .begin_us = absl::ToUnixMicros(begin),
              .duration_us = static_cast<int64_t>(seconds * 1e6),
              .bytes = Moves(op) ? op.move.elements_sent() * kWordBytes : -1,
              .step = step_});
}

}  // namespace cadre
