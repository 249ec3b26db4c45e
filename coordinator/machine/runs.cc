#include "coordinator/machine/runs.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"

namespace cadre {

absl::Status CheckSpec(const CoordinatorOptions& options, const v1::RunSpec& spec) {
  if (options.validate) CADRE_RETURN_IF_ERROR(options.validate(spec));
  if (!Averages(spec) && GroupsOf(spec) > 1) {
    return absl::InvalidArgumentError(
        "averaging.every_steps: 0 (never) requires a single group, but cluster.groups is larger");
  }
  // Programs plan their own ranks.
  if (spec.model().has_opaque()) return absl::OkStatus();
  const int ranks = RanksPerGroup(spec);
  return Annotate(options.plan(spec, ranks).status(),
                  absl::StrCat("no plan for groups of ", ranks));
}

absl::Status NoSuchRun(absl::string_view run) {
  return absl::NotFoundError(absl::StrCat("no such run: ", run));
}

Run& Runs::Add(const v1::RunRecord& record) {
  const uint32_t number = RunNumber(record.run());
  unsettled_.insert(number);
  return runs_.try_emplace(number, record, context_).first->second;
}

void Runs::Erase(uint32_t number) {
  SetDeadline(number, absl::InfiniteFuture());
  unsettled_.erase(number);
  waiting_.erase(number);
  runs_.erase(number);
}

absl::Status Runs::CheckLive() const {
  const auto live = std::count_if(runs_.begin(), runs_.end(),
                                  [](const auto& entry) { return entry.second.live(); });
  if (live < context_.options.max_live_runs) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      live, " runs are queued or running, as many as --max-live-runs allows; stop some first"));
}

// Looks the run up by the number in its id ("run-<number>..."); the rest of the id must be equal as
// well.
const Run* Runs::Find(absl::string_view id) const {
  const auto it = runs_.find(RunNumber(id));
  return it == runs_.end() || it->second.id() != id ? nullptr : &it->second;
}

const Run* Runs::Resolve(absl::string_view run) const {
  if (RunNumber(run) != 0) return Find(run);
  const Run* newest = nullptr;
  for (auto it = runs_.rbegin(); it != runs_.rend(); ++it) {
    const Run& one = it->second;
    if (one.spec().name() != run) continue;
    if (one.live()) return &one;
    if (newest == nullptr) newest = &one;
  }
  return newest;
}

absl::Status Runs::CheckOneOfName(absl::string_view run, bool only_live) const {
  std::vector<std::string> ids;
  for (const auto& [number, one] : runs_) {
    const bool named = RunNumber(run) == 0 && one.spec().name() == run;
    if (named && (one.live() || !only_live)) ids.push_back(one.id());
  }
  if (ids.size() <= 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(ids.size(), " runs are named '", run,
                                                    "': ", absl::StrJoin(ids, ", "),
                                                    "; give the id of one"));
}

Run* Runs::LiveRunOf(const v1::Reservation& reservation) {
  for (auto& [number, run] : runs_) {
    if (run.live() && run.IsReserved(reservation)) return &run;
  }
  return nullptr;
}

Run* Runs::Visit(absl::string_view id) {
  Run* const run = Find(id);
  if (run != nullptr) Visit(*run);
  return run;
}

void Runs::VisitAll() {
  for (const auto& [number, run] : runs_) unsettled_.insert(number);
}

void Runs::VisitWaitingForAggregators(bool draining) {
  for (const uint32_t number : waiting_) {
    if (runs_.at(number).waits_for_aggregators()) unsettled_.insert(number);
  }
  if (!draining) return;
  for (const auto& [number, run] : runs_) {
    if (run.lacks_target()) unsettled_.insert(number);
  }
}

// Runs are visited in the order of the queue: the first ones choose from the idle workers first,
// and reserve the workers that they wait for.
Runs::Settled Runs::Settle(bool form) {
  Cluster& cluster = context_.cluster;
  cluster.UpdateIdle();
  for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= cluster.now(); ++it) {
    unsettled_.insert(it->second);
  }
  for (const uint32_t number : cluster.queue().Givers(cluster.now())) unsettled_.insert(number);
  form = form || cluster.members().idle_changes() != seen_idle_;
  Settled settled;
  for (const uint32_t number : unsettled_) {
    const Run& run = runs_.at(number);
    form = form || run.waits() || waiting_.contains(number);
    settled.ended = settled.ended || !run.live();
  }
  std::vector<std::string> idle;
  if (form) {
    unsettled_.insert(waiting_.begin(), waiting_.end());
    if (!unsettled_.empty()) idle = cluster.IdleByHost();
  }
  int formations = kMaxFormations;
  std::set<uint32_t> postponed;
  for (const uint32_t number : cluster.queue().InOrder(unsettled_)) {
    Run& run = runs_.at(number);
    // Later runs must not take the workers of a run that has not formed all its groups.
    const bool waits = run.active() && run.waits();
    if (waits && formations == 0) {
      postponed.insert(number);
      continue;
    }
    run.Touch();
    if (run.active() && (!waits || run.Form(idle, formations))) {
      const size_t before = cluster.members().idle().size();
      run.Advance();
      // A run that ends or is parked no longer needs the workers that it has reserved.
      settled.released =
          settled.released || !run.active() || cluster.members().idle().size() > before;
    }
    if (waits && formations == 0) {
      postponed.insert(number);
    } else {
      run.EndEvent();
    }
    if (run.waits()) {
      waiting_.insert(number);
    } else {
      waiting_.erase(number);
    }
    SetDeadline(number, run.NextDeadline());
  }
  unsettled_ = std::move(postponed);
  seen_idle_ = cluster.members().idle_changes();
  return settled;
}

void Runs::SetDeadline(uint32_t number, absl::Time deadline) {
  const auto before = deadline_of_.find(number);
  if (before != deadline_of_.end()) {
    deadlines_.erase({before->second, number});
    deadline_of_.erase(before);
  }
  if (deadline == absl::InfiniteFuture()) return;
  deadlines_.emplace(deadline, number);
  deadline_of_[number] = deadline;
}

}  // namespace cadre
