// What bench_step measures. Every rank of a group is a process that calls one of these functions
// with its connections; rank 0 prints the lines.
//
// Thread-compatible.
#pragma once

#include <gflags/gflags.h>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"

DECLARE_string(model);
DECLARE_int32(batch);
DECLARE_int32(micro_batches);
DECLARE_int32(threads);
DECLARE_int32(steps);

namespace cadre {

struct StepGroup {
  Transport& transport;
  // All ranks.
  Communicator& communicator;

  bool lead() const { return transport.rank() == 0; }
};

// The techniques of Cadre, enabled one at a time.
absl::Status MeasureOverlap(const StepGroup& group);
// Predicted and measured times of plans.
absl::Status MeasurePlanErrors(const StepGroup& group);
// Placements and pipelines whose layers take known times.
absl::Status MeasureMakespan(const StepGroup& group);

}  // namespace cadre
