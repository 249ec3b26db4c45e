// Drives the coordinator's state machine with fake members, in this thread and under virtual time,
// and times every event.
//
// Thread-compatible.
#pragma once

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace cadre {

struct MachineLoadOptions {
  // Workers; four aggregators are added.
  int members = 100'000;
  // Share of the workers that hold a rank of a group; the others are idle.
  double placed = 0.5;
  int ranks_per_group = 16;
  int groups_per_run = 16;
  // Seconds of measured time, and the limit for the time in which the members join.
  double seconds = 20;
  double setup_seconds = 120;
};

// The fields of the output line. Errors: Internal if members and state machine disagree, for
// example on the number of heartbeats.
absl::StatusOr<nlohmann::ordered_json> MeasureMachine(const MachineLoadOptions& options);

}  // namespace cadre
