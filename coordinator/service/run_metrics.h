// The coordinator's metrics (base/http/metrics.h) from the state machine.
#pragma once

#include "absl/time/time.h"
#include "base/http/metrics.h"
#include "coordinator/machine/machine.h"

namespace cadre {

// Adds the metrics of members and of live runs. Called on the loop's thread.
void CollectMachine(const Machine& machine, absl::Time now, Metrics& metrics);

}  // namespace cadre
