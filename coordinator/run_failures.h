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
  // A worker of `host` reports a permanent cause (coordinator/standing.h) at the run's `version`;
  // `hosts` could serve the run. Returns whether the run has to end.
  bool Add(v1::FailureCause cause, const std::string& host, uint32_t version, size_t hosts);
  // A generation of one of `groups` has diverged. Returns whether the run has to end.
  bool AddDivergence(uint32_t generation, uint32_t groups);
  // Discards the reports of the cause: they were wrong.
  void Forget(v1::FailureCause cause) { reports_.erase(cause); }
  void OnCommit();

 private:
  struct Reports {
    uint32_t count = 0;
    std::set<std::string> hosts;
  };
  std::map<v1::FailureCause, Reports> reports_;
  std::set<uint32_t> diverged_;
};

}  // namespace cadre
