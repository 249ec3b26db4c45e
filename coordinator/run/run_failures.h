// Which failures show that a run cannot succeed on any worker.
//
// One host that reports a permanent cause is suspected itself, as long as others could serve the
// run. A commit shows that the run can be trained: it discards all earlier reports.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class RunFailures {
 public:
  // A worker of `host` reports a permanent cause (coordinator/cluster/standing.h) at the run's
  // `version`; `hosts` could serve the run. Returns whether the run has to end.
  bool Add(v1::FailureCause cause, const std::string& host, uint32_t version, size_t hosts);
  // A generation of one of `groups`, whose ranks were on `members`, has diverged; `hosts` could
  // serve the run. Returns whether the run has to end.
  bool AddDivergence(uint32_t generation, const std::set<std::string>& members, uint32_t groups,
                     size_t hosts);
  // Discards the reports of the cause: they were wrong.
  void Forget(v1::FailureCause cause) { reports_.erase(cause); }
  void OnCommit();

 private:
  struct Reports {
    uint32_t count = 0;
    std::set<std::string> hosts;
  };
  std::map<v1::FailureCause, Reports> reports_;
  // Generations that diverged, and the hosts that all of them had.
  std::set<uint32_t> diverged_;
  std::set<std::string> diverged_on_;
};

}  // namespace cadre
