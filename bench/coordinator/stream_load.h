// Drives a cadre-coordinator in a child process, with a store on disk, over real Join streams of
// fake members.
//
// Thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace cadre {

struct StreamLoadOptions {
  // Workers; four aggregators are added. Each has a stream and a connection of its own.
  int streams = 5000;
  // Share of the workers that hold a rank of a group; the others are idle.
  double placed = 0.5;
  int ranks_per_group = 16;
  int groups_per_run = 16;
  double seconds = 20;
  // Limit for the time until all members have joined and all groups train.
  absl::Duration setup = absl::Minutes(2);
  // Time for which a group trains between two rounds.
  absl::Duration round = absl::Seconds(5);
  absl::Duration status_interval = absl::Milliseconds(100);
  absl::Duration lease = absl::Seconds(10);
  // Folder of cadre-coordinator; empty: that of this program.
  std::string programs;
};

// The fields of the output line. Errors: FailedPrecondition if the limit of open files is too low;
// NotFound without the program; DeadlineExceeded if the setup takes too long; Internal if members
// and coordinator disagree, for example on the number of heartbeats.
absl::StatusOr<nlohmann::ordered_json> MeasureStreams(const StreamLoadOptions& options);

}  // namespace cadre
