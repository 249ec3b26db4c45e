// When a group has stalled: no rank has made progress for much longer than ever before in its run.
//
// A hung training thread keeps its lease, because heartbeats come from another thread. They report
// what the training thread does and carry a number that changes with its progress. A rank that
// hangs also blocks its peers, so a group has stalled when all its ranks that are not waiting for
// the coordinator have made no progress for the limit of their activity:
//
//   PREPARING            10 times the longest pause seen in this run, at least 1 min
//   TRAINING             10 times the longest pause or step, at least 1 min
//   EXCHANGING           110 s; none while a shard does not accept contributions
//   EVALUATING, SAVING   10 times the longest pause, at least 2 min
//   WAITING              none: it waits for the coordinator
//
// A program with a training loop of its own compiles, evaluates and saves between two steps, in
// whatever time that takes, and its library reports that the process is alive. In a group of such
// programs, every activity but EXCHANGING and WAITING has one limit, cluster.max_pause_ms, and none
// before the first step of the generation. Its pauses do not raise the limits of other groups.
//
// A pause ends with progress, so a stall is not a measurement. But every stall doubles the limit of
// its activity until a long pause was seen; otherwise a run whose first step is very slow, or whose
// data takes minutes to open on some hosts, could never continue.
//
// Pure and thread-compatible: time is the argument `now`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// What a run has shown about its pauses.
class Pauses {
 public:
  // The thread made progress again, or changed its activity, after `pause`.
  void Observe(v1::Activity activity, absl::Duration pause);
  void ObserveStall(v1::Activity activity);
  // `step`: the measured or predicted time of a step; zero: unknown.
  absl::Duration Limit(v1::Activity activity, absl::Duration step) const;

 private:
  struct Seen {
    // Negative: no pause was seen.
    absl::Duration longest = absl::Seconds(-1);
    int stalls = 0;
  };
  std::array<Seen, v1::Activity_ARRAYSIZE> seen_;
};

// The progress of the ranks of one generation.
class ProgressWatch {
 public:
  // `heartbeat`: the interval of heartbeats. A gap between two of them counts as at most twice
  // this, so that a pause of the coordinator is not taken for one of the ranks.
  // `max_pause`: of a group of programs with training loops of their own.
  explicit ProgressWatch(absl::Duration heartbeat,
                         std::optional<absl::Duration> max_pause = std::nullopt)
      : heartbeat_(heartbeat), max_pause_(max_pause) {}

  // A heartbeat of a rank.
  void OnHeartbeat(uint32_t rank, v1::Activity activity, uint64_t progress, absl::Time now,
                   Pauses& pauses);

  // The generation has done a step.
  void SetStepped() { stepped_ = true; }

  // For how long no rank has made progress; zero before the first heartbeat.
  absl::Duration pause() const;
  // The same for a group of programs with training loops of their own, while none of its ranks
  // exchanges values or waits for the coordinator; otherwise zero.
  absl::Duration program_pause() const;

  struct Stall {
    absl::Duration pause;
    v1::Activity activity = v1::ACTIVITY_UNSPECIFIED;
    // The ranks that stopped before the others; empty if all stopped together.
    std::vector<uint32_t> suspects;
  };
  // The stall of the group of `ranks`, if any. A group is not watched while one of its ranks has
  // not reported an activity.
  std::optional<Stall> Check(uint32_t ranks, absl::Duration step, const Pauses& pauses) const;

 private:
  struct Rank {
    v1::Activity activity = v1::ACTIVITY_UNSPECIFIED;
    uint64_t progress = 0;
    absl::Duration pause = absl::ZeroDuration();
    absl::Time last_heartbeat;
  };

  absl::Duration Limit(v1::Activity activity, absl::Duration step, const Pauses& pauses) const;

  absl::Duration heartbeat_;
  std::optional<absl::Duration> max_pause_;
  bool stepped_ = false;
  std::map<uint32_t, Rank> ranks_;
};

}  // namespace cadre
