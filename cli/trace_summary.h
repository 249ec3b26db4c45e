// What a trace of some steps comes to, rank by rank, and the trace as a file for viewers.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// Of one rank. All seconds are per step; what overlaps itself is counted once.
struct RankTimes {
  uint32_t rank = 0;
  std::string worker;
  std::string host;
  // Steps that the trace holds from begin to end.
  uint32_t steps = 0;
  double step = 0;
  double compute = 0;
  // Activations between the ranks, which the rank's own thread waits for.
  double moves = 0;
  // Collectives on gradients and weights, on whichever thread.
  double collectives = 0;
  // The rank's own thread had nothing to do but wait for them.
  double wait = 0;
  uint64_t events = 0;
  uint64_t dropped = 0;

  // Part of the step that was waited; 0 without a step.
  double exposed() const { return step > 0 ? wait / step : 0; }
};

std::vector<RankTimes> TimesOf(const v1::TraceReply& trace);

// A table for people.
std::string TimesTable(const std::vector<RankTimes>& times);
// A list of objects; names are fixed, scripts rely on them.
std::string TimesJson(const std::vector<RankTimes>& times);

// For Chrome's trace viewer and Perfetto.
std::string TraceFile(const v1::TraceReply& trace, uint32_t group);

}  // namespace cadre
