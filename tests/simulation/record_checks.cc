#include "tests/simulation/record_checks.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/coding.h"
#include "model/data_position.h"
#include "tests/simulation/describe.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

template <typename Record>
Record RecordIn(const RecordChecks::Store& store, const std::string& key) {
  return Read<Record>(store, key).value_or(Record());
}

v1::RunRecord RunOf(const RecordChecks::Store& store, const std::string& run) {
  return RunIn(store, RunKey(run));
}

bool Names(const v1::CommitRecord& commit, const v1::RankSlot& place) {
  return std::any_of(commit.participants().begin(), commit.participants().end(),
                     [&](const v1::Participant& in) {
                       return in.group() == place.group() && in.generation() == place.generation();
                     });
}

}  // namespace

void RecordChecks::OnStaged(const v1::ContributionHeader& header) {
  if (header.seed()) return;
  samples_[{header.run(), header.round(), header.group(), header.generation()}] = header.samples();
}

void RecordChecks::OnTransaction(const Store& before, const Store& after) {
  const auto was = RecordIn<v1::MetaRecord>(before, kMetaKey);
  const auto is = RecordIn<v1::MetaRecord>(after, kMetaKey);
  if (is.starts() > was.starts() && is.epoch() <= was.epoch()) {
    world_.Violate("start ", is.starts(), " has epoch ", is.epoch(), " after ", was.epoch());
  }
  for (auto it = after.lower_bound(kCommitPrefix);
       it != after.end() && absl::StartsWith(it->first, kCommitPrefix); ++it) {
    const auto old = before.find(it->first);
    if (old != before.end() && old->second == it->second) continue;
    v1::CommitRecord commit;
    commit.ParseFromString(it->second);
    if (is_restored_(commit.run())) continue;
    const v1::RunRecord run = RunOf(after, commit.run());
    const bool is_new = RunOf(before, commit.run()).version() + 1 == run.version();
    if (commit.committed() && run.version() == commit.round() && is_new) {
      sample_ledger_.OnCommit(commit, BatchOf(run.spec()));
    }
    if (commit.participants().empty()) continue;
    if (old == before.end()) CheckRound(run, commit);
    if (commit.committed() && run.version() == commit.round()) {
      CheckVersion(RunOf(before, commit.run()), run, commit);
      CheckSuccess(after, commit);
    }
  }
}

void RecordChecks::CheckRound(const v1::RunRecord& run, const v1::CommitRecord& commit) {
  const uint32_t min_groups = run.spec().averaging().min_groups();
  // The screen may leave fewer.
  if (commit.attempt() <= 1 && commit.participants_size() < static_cast<int64_t>(min_groups)) {
    world_.Violate(Describe(commit), " has fewer than ", min_groups, " groups");
  }
  uint64_t sum = 0;
  for (const v1::Participant& in : commit.participants()) {
    const auto staged = samples_.find({commit.run(), commit.round(), in.group(), in.generation()});
    if (staged != samples_.end() && staged->second != in.samples()) {
      world_.Violate(Describe(commit), " weighs group ", in.group(), " by ", in.samples(),
                     " samples, but ", staged->second, " were staged");
    }
    sum += in.samples();
  }
  const v1::SampleDivision before = DivisionOf(run);
  const v1::SampleDivision& next = commit.division();
  const bool divided = commit.has_division() && next.groups() != before.groups();
  const uint64_t position = PositionAt(before, commit.step(), BatchOf(run.spec()));
  if (divided && (next.step() != commit.step() || next.position() != position)) {
    world_.Violate(Describe(commit), " of step ", commit.step(), " divides the samples from step ",
                   next.step());
  }
  if (commit.samples() != sum) {
    world_.Violate(Describe(commit), " has ", commit.samples(), " samples, its participants ", sum);
  }
}

void RecordChecks::CheckVersion(const v1::RunRecord& before, const v1::RunRecord& after,
                                const v1::CommitRecord& commit) {
  if (before.version() + 1 != after.version()) return;
  if (after.samples() != before.samples() + commit.samples()) {
    world_.Violate(Describe(commit), " of ", commit.samples(), " samples changes those of the run ",
                   "from ", before.samples(), " to ", after.samples());
  }
  // Groups contribute what they have trained since the version before. One that has missed rounds
  // may have trained more steps than a round has.
  uint64_t steps = 0;
  for (const v1::Participant& in : commit.participants()) {
    steps = std::max(steps, in.samples() / after.spec().batch_per_group());
  }
  const uint32_t boundary = BoundaryAfter(before, before.step());
  if (after.step() < std::min<uint64_t>(before.step() + steps, boundary)) {
    world_.Violate(Describe(commit), " goes from step ", before.step(), " to ", after.step(),
                   ", but a group has trained ", steps, " steps");
  }
}

void RecordChecks::CheckSuccess(const Store& after, const v1::CommitRecord& commit) {
  for (const v1::Participant& in : commit.participants()) {
    const auto group = RecordIn<v1::GroupRecord>(after, GroupKey(commit.run(), in.group()));
    if (group.generation() != in.generation() || !group.started()) continue;
    for (const std::string& id : group.members()) {
      const auto member = RecordIn<v1::MemberRecord>(after, MemberKey(id));
      const auto standing =
          RecordIn<v1::StandingRecord>(after, StandingKey(member.host(), member.name()));
      if (standing.failed().failures() == 0) continue;
      world_.Violate("worker ", id, " has ", standing.failed().failures(),
                     " failures on record, although ", Describe(commit), " includes its group");
    }
  }
}

void RecordChecks::OnSent(const Store& store, const v1::CoordinatorMessage& message) {
  if (message.has_assignment()) {
    OnKeyAssigned(message.assignment());
  } else if (message.has_decision()) {
    CheckDecision(store, message.decision());
  } else if (message.has_start()) {
    const v1::Start& start = message.start();
    const v1::RunRecord run = RunOf(store, start.place().run());
    CheckBoundary(run, start.place(), start.step(), start.next_step());
  } else if (message.has_open_run()) {
    for (const auto& [group, key] : message.open_run().keys()) {
      CheckKey(message.open_run().run(), group, key);
    }
  } else if (message.has_fence() && !message.fence().key().empty()) {
    CheckKey(message.fence().run(), message.fence().group(), message.fence().key());
  }
}

void RecordChecks::CheckDecision(const Store& store, const v1::Decision& decision) {
  const v1::RankSlot& place = decision.place();
  if (!decision.adopt()) return;
  const v1::RunRecord run = RunOf(store, place.run());
  CheckBoundary(run, place, decision.step(), decision.next_step());
  if (decision.next_step() > 0 && decision.fragment() != FragmentAfter(run, run.version())) {
    world_.Violate("Decision ", Describe(place), " names fragment ", decision.fragment());
  }
  const auto commit = RecordIn<v1::CommitRecord>(store, CommitKey(place.run(), decision.round()));
  // Old commits are removed. A rebuilt record may lack its participants.
  const bool known = decision.round() <= decision.version() && commit.round() == decision.round();
  if (!known || is_restored_(place.run())) return;
  if (decision.included() != Names(commit, place)) {
    world_.Violate("Decision ", Describe(place), " has included = ", decision.included(),
                   ", which differs from the participants of ", Describe(commit));
  }
}

void RecordChecks::CheckBoundary(const v1::RunRecord& run, const v1::RankSlot& place, uint32_t step,
                                 uint32_t next_step) {
  // The group does not train further, or never averages.
  if (next_step == 0 || !Averages(run.spec()) || is_restored_(run.run())) return;
  const uint32_t steps = std::min(StepsOfRound(run.spec().averaging()), TotalSteps(run) - step);
  const bool less = run.spec().averaging().steps_by_speed() && next_step < step + steps;
  if (less || next_step == step + steps) return;
  world_.Violate(Describe(place), " has its next boundary at ", next_step, ", ", steps,
                 " steps after ", step, " are due");
}

void RecordChecks::OnKeyAssigned(const v1::Assignment& assignment) {
  v1::RankSlot place = assignment.place();
  place.set_rank(0);
  const auto [it, is_new] = places_by_key_.try_emplace(assignment.key(), place);
  const v1::RankSlot& first = it->second;
  if (first.generation() != place.generation()) {
    world_.Violate(Describe(place), " has the key of ", Describe(first));
  }
}

void RecordChecks::CheckKey(const std::string& run, uint32_t group, const std::string& key) {
  const auto found = places_by_key_.find(key);
  if (found == places_by_key_.end()) return;
  const v1::RankSlot& place = found->second;
  if (place.run() == run && place.group() == group) return;
  world_.Violate("an aggregator receives the key of ", Describe(place), " for group ", group,
                 " of ", run);
}

}  // namespace cadre::simulation
