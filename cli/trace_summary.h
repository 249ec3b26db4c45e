// Summarizes a trace of some steps rank by rank, and formats it for trace viewers.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/render.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// The times of one rank. All seconds are per step; overlapping intervals count once.
struct RankTimes {
  uint32_t rank = 0;
  std::string worker;
  std::string host;
  // Steps that the trace contains completely.
  uint32_t steps = 0;
  double step = 0;
  double compute = 0;
  // Activations moved between ranks, for which the rank's main thread waits.
  double moves = 0;
  // Collectives on gradients and weights, on any thread.
  double collectives = 0;
  // Time for which the rank's main thread waited for collectives without doing other work.
  double wait = 0;
  uint64_t events = 0;
  uint64_t dropped = 0;

  // The fraction of the step spent waiting; 0 without a step.
  double exposed() const { return step > 0 ? wait / step : 0; }
};

std::vector<RankTimes> TimesOf(const v1::TraceReply& trace);

std::string TimesTable(const std::vector<RankTimes>& times);
Json ToJson(const RankTimes& rank);

// For Chrome's trace viewer and Perfetto.
std::string TraceFile(const v1::TraceReply& trace, uint32_t group);

}  // namespace cadre
