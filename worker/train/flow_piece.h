// One piece of a gradient flow's work, for whoever watches: how long it took, into the trace and to
// the observer. Reads no clock where nobody watches.
//
// Borrows both. Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "base/trace.h"
#include "worker/train/gradient_flow.h"

namespace cadre {

class FlowPiece {
 public:
  using Part = FlowObserver::Part;
  // Begins now. Both may be null.
  FlowPiece(Trace* trace, FlowObserver* observer, int64_t step);
  // Ends now: `what`, of a chunk of a bucket if that is given. `bytes`: sent; -1: it sends nothing.
  void End(Part part, int64_t bytes, const char* what, int bucket = -1, int chunk = 0) const;

 private:
  Trace* const trace_;
  FlowObserver* const observer_;
  const int64_t step_;
  const absl::Time begin_;
};

}  // namespace cadre
