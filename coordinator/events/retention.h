// Which runs that have ended are deleted without an order of an operator, and when.
//
// A run with a version holds a model. It is deleted only by the rules that the operator has set: a
// time after its end, or a budget of bytes, of which the runs that ended first give way. Both are
// off by default. The deletion is announced before it happens: by the notice, or by the time for
// which runs are kept if that is shorter. An announcement whose reason has gone is withdrawn.
//
// A run without a version holds no model. Of these the newest are kept, for their records, and do
// not count for the rules above.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

struct RetentionPolicy {
  // Time for which runs with a version are kept; zero: no limit.
  absl::Duration keep_for;
  // Bytes that they may take on the aggregators; 0: no limit.
  uint64_t keep_bytes = 0;
  // Number of runs without a version that are kept: those that ended last.
  int keep_without_version = 64;
  // Time between the announcement of a deletion and the deletion.
  absl::Duration notice = absl::Hours(1);
};

struct EndedRun {
  uint32_t number = 0;
  bool has_version = false;
  absl::Time ended;
  uint64_t bytes = 0;
  // When its deletion is announced for; InfiniteFuture: it is not announced.
  absl::Time removal = absl::InfiniteFuture();
};

struct RetentionChanges {
  struct Run {
    uint32_t number = 0;
    absl::Time removal;
    std::string reason;
  };
  // Runs to delete now; the deletions to announce, and those that are not to happen any more.
  std::vector<Run> remove;
  std::vector<Run> announce;
  std::vector<uint32_t> withdraw;
  // When something more is to be done without another end of a run.
  absl::Time next = absl::InfiniteFuture();
};

RetentionChanges FindRetentionChanges(const RetentionPolicy& policy, std::vector<EndedRun> ended,
                                      absl::Time now);

}  // namespace cadre
