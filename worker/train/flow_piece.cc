#include "worker/train/flow_piece.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace cadre {

FlowPiece::FlowPiece(Trace* trace, FlowObserver* observer, int64_t step)
    : trace_(trace != nullptr && trace->on() ? trace : nullptr),
      observer_(observer),
      step_(step),
      begin_(trace_ != nullptr || observer_ != nullptr ? absl::Now() : absl::Time()) {}

void FlowPiece::End(Part part, int64_t bytes, const char* what, int bucket, int chunk) const {
  if (trace_ == nullptr && observer_ == nullptr) return;
  const absl::Duration took = absl::Now() - begin_;
  if (observer_ != nullptr) observer_->Done(part, step_, bucket, absl::ToDoubleSeconds(took));
  if (trace_ == nullptr) return;
  std::string name = what;
  if (bucket >= 0) absl::StrAppend(&name, " bucket ", bucket, " part ", chunk);
  trace_->Add({.name = std::move(name),
               .category = part == Part::kUpdate ? "update" : "collective",
               .lane = 1,
               .begin_us = absl::ToUnixMicros(begin_),
               .duration_us = absl::ToInt64Microseconds(took),
               .bytes = bytes,
               .step = step_});
}

}  // namespace cadre
