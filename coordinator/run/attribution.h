// Who caused the failure of a generation, and what follows (attribution.cc has the rules); stalls,
// which only heartbeats show.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/failure_reports.h"
#include "coordinator/events/deadlines.h"
#include "coordinator/run/data_sizes.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_context.h"
#include "coordinator/run/run_failures.h"
#include "coordinator/run/run_groups.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_view.h"
#include "coordinator/run/slots.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class Attribution {
 public:
  // All are borrowed.
  Attribution(const RunView& run, Slots& slots, const DataSizes& data_sizes,
              const RunRounds& rounds, RunGroups& groups, const RunContext& context)
      : run_(run),
        slots_(slots),
        data_sizes_(data_sizes),
        rounds_(rounds),
        groups_(groups),
        cluster_(context.cluster),
        options_(context.options) {}

  // Generations that failed a moment ago.
  const std::vector<FailureReports>& reports() const { return failure_reports_; }
  // Live groups that the round awaits for a short time only, or not at all.
  Round::Away Away() const;

  // The generation may have ended already; if not, it ends. Returns why the run fails, if it does.
  std::optional<std::string> OnGroupFailed(const Member& member, const v1::GroupFailed& failed);
  // The member has shown by a message that its group cannot continue. Returns the same.
  std::optional<std::string> Fail(const Member& member, const v1::RankSlot& place,
                                  v1::FailureCause cause, const std::string& reason);
  // The member holds a rank of this run. Returns whether the run must be settled.
  bool OnHeartbeat(const Member& member, const v1::Heartbeat& heartbeat);
  // Records the suspects of generations about which all reports have arrived.
  void JudgeReports();
  // A commit shows that the run can be trained.
  void OnCommit() { failures_.OnCommit(); }
  // Failures of this cause were none.
  void Forget(v1::FailureCause cause) {
    failures_.Forget(cause);
    cluster_.standings().Forgive(cause);
  }

 private:
  const v1::RunSpec& spec() const { return run_.spec(); }
  // Records one of the reports of a generation. Returns whether the run fails.
  bool Attribute(const Member& member, const v1::GroupFailed& failed,
                 const FailureReports& reports);
  // Number of hosts with connected workers that could serve the run.
  size_t CountHosts() const;
  // Whether most hosts have the data of the run, or hosts that have not reported theirs may
  // have it. False after the first start.
  bool MayAgreeOnData() const;
  void FenceStalled(Slot& slot, const ProgressWatch::Stall& stall);
  // Whether a program's own loop has made no progress for longer than a round awaits it.
  bool HasPaused(const Slot& slot) const;

  const RunView& run_;
  Slots& slots_;
  const DataSizes& data_sizes_;
  const RunRounds& rounds_;
  RunGroups& groups_;
  Cluster& cluster_;
  const CoordinatorOptions& options_;
  std::vector<FailureReports> failure_reports_;
  // The failures that concern the run since the last commit.
  RunFailures failures_;
  // What the run has shown about its pauses.
  Pauses pauses_;
  // Groups whose last heartbeats have shown that they pause (HasPaused).
  std::set<uint32_t> paused_;
};

}  // namespace cadre
