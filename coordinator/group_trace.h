// A trace of a group's next steps that somebody waits for: what the ranks have answered so far.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Steps that one request may ask for; and how many it means when it does not say.
inline constexpr uint32_t kMostTraceSteps = 100;
inline constexpr uint32_t kUsualTraceSteps = 3;
// Events that one rank may send, however few ranks there are.
inline constexpr uint32_t kMostTraceEvents = 20'000;

class GroupTrace {
 public:
  struct Options {
    // The call that waits (RequestId of coordinator/events.h).
    uint64_t request = 0;
    // What the ranks know it by.
    uint64_t number = 0;
    uint32_t steps = kUsualTraceSteps;
    uint32_t ranks = 1;
    // Of the reply; each rank has an equal share.
    size_t most_bytes = 0;
  };

  explicit GroupTrace(const Options& options) : options_(options) {}

  uint64_t request() const { return options_.request; }
  uint64_t number() const { return options_.number; }
  uint32_t steps() const { return options_.steps; }
  // What a rank is told to send at most.
  uint32_t most_events() const;
  bool answered(uint32_t rank) const { return ranks_.contains(rank); }
  bool complete() const { return ranks_.size() == options_.ranks; }

  // Takes a rank's answer; `worker` and `host` name who gave it. Events beyond the rank's share are
  // left out and counted as dropped. Later answers of the same rank change nothing.
  void Take(const v1::Traced& traced, const std::string& worker, const std::string& host);

  // By rank. Guarantees: no larger than Options::most_bytes, names of workers and hosts apart.
  v1::TraceReply Reply() const;

 private:
  Options options_;
  std::map<uint32_t, v1::RankTrace> ranks_;
};

}  // namespace cadre
