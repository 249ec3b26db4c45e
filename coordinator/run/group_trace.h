// A trace of a group's next steps that a user has requested. Collects the answers of the ranks.
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

// Maximum and default number of steps of one request.
inline constexpr uint32_t kMaxTraceSteps = 100;
inline constexpr uint32_t kDefaultTraceSteps = 3;
// Maximum number of events of one rank, however few ranks there are.
inline constexpr uint32_t kMaxTraceEvents = 20'000;

class GroupTrace {
 public:
  struct Options {
    // The waiting call (RequestId of coordinator/events/events.h).
    uint64_t request = 0;
    // Identifies the trace in messages to the ranks.
    uint64_t number = 0;
    uint32_t steps = kDefaultTraceSteps;
    uint32_t ranks = 1;
    // Size limit of the reply; each rank has an equal share.
    size_t max_bytes = 0;
  };

  explicit GroupTrace(const Options& options) : options_(options) {}

  uint64_t request() const { return options_.request; }
  uint64_t number() const { return options_.number; }
  uint32_t steps() const { return options_.steps; }
  // The maximum number of events per rank, which the request to the ranks states.
  uint32_t max_events() const;
  bool answered(uint32_t rank) const { return ranks_.contains(rank); }
  bool complete() const { return ranks_.size() == options_.ranks; }

  // Adds the answer of a rank, computed by `worker` on `host`. Events beyond the rank's share are
  // left out and counted as dropped. Further answers of the same rank are ignored.
  void Take(const v1::Traced& traced, const std::string& worker, const std::string& host);

  // All answers, by rank. Guarantees: at most Options::max_bytes, not counting names of workers and
  // hosts.
  v1::TraceReply Reply() const;

 private:
  Options options_;
  std::map<uint32_t, v1::RankTrace> ranks_;
};

}  // namespace cadre
