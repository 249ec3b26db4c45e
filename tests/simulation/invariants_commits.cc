// Invariants of commit records. Part of Invariants.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "model/shard_copies.h"
#include "tests/simulation/describe.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/stored_records.h"

namespace cadre::simulation {
namespace {

// Whether a commit without participants is the copy of a version that was committed.
bool CheckCopy(World& world, const v1::CommitRecord& commit, bool is_committed) {
  if (commit.participants().empty() != commit.has_restores()) {
    world.Violate(Describe(commit), " has no participants, or is a copy and has some");
  }
  if (commit.has_restores() && !is_committed) {
    world.Violate(Describe(commit), " restores version ", commit.restores(),
                  ", which was never committed");
    return false;
  }
  world.Count("rollbacks", commit.has_restores() ? 1 : 0);
  return true;
}

// The screen leaves out less than half of the participants, before the version is committed.
void CheckNextAttempt(World& world, const v1::CommitRecord& before,
                      const v1::CommitRecord& commit) {
  const bool smaller = absl::c_all_of(commit.participants(), [&](const v1::Participant& in) {
    return absl::c_any_of(before.participants(), [&](const v1::Participant& was) {
      return was.SerializeAsString() == in.SerializeAsString();
    });
  });
  if (!smaller || commit.participants_size() >= before.participants_size() ||
      2 * commit.participants_size() < before.participants_size()) {
    world.Violate(Describe(commit), " is made again of other participants than some of the first");
  }
  world.Count("rounds_screened_again");
}

}  // namespace

// Whether the record is that of a version that aggregators reported after the record was lost.
bool Invariants::IsRebuilt(const v1::RunRecord& run, const v1::CommitRecord& commit) {
  const std::pair<std::string, uint32_t> version(commit.run(), commit.round());
  const auto first = closed_.find(version);
  if (!restored_.contains(commit.run()) || first == closed_.end()) return false;
  // A round that was closed just now.
  if (!commit.committed() && std::none_of(commit.digests().begin(), commit.digests().end(),
                                          [](const auto& shard) { return shard.applied(); })) {
    return false;
  }
  // A shard that was restored from a group does not have the order that made its version.
  const bool known = !commit.participants().empty() || commit.has_restores();
  // Another coordinator has made the round again, which is forgotten (docs/design/averaging.md).
  const auto attempt = first_attempts_.find(version);
  if (attempt != first_attempts_.end() && SameMaking(attempt->second.closed, commit)) {
    world_.Count("first_attempts_adopted");
    std::swap(closed_[version], attempt->second.closed);
    std::swap(versions_[commit.run()][commit.round()], attempt->second.values);
  }
  if (known && !SameMaking(first->second, commit)) {
    const bool lost = !written_.Contains(version) || HasLostDisk(run);
    if (!lost) world_.Violate(Describe(commit), " is rebuilt with other participants");
    return !lost;
  }
  if (commit.committed()) committed_.emplace(version, commit.participants_size());
  return true;
}

void Invariants::CheckNewCommit(const View& view, const Store& before, const Store& after,
                                const v1::CommitRecord& commit) {
  if (!after.contains(RunKey(commit.run()))) {
    world_.Violate(Describe(commit), " has no run");
    return;
  }
  const v1::RunRecord run = RunIn(after, RunKey(commit.run()));
  if (!run.has_spec()) return;
  if (commit.round() == 0) {
    versions_[commit.run()][0] = InitialValues(run.spec());
    shards_[commit.run()] = run.shards_size();
    committed_[{commit.run(), 0}] = 0;
    return;
  }
  if (IsRebuilt(run, commit)) return;
  // A rollback, and a round with early contributions, may be closed in the transaction in which the
  // round before is committed.
  const auto base = Read<v1::CommitRecord>(after, CommitKey(commit.run(), commit.round() - 1));
  // An older record may close a round again that no aggregator has applied.
  const bool closed =
      versions_[commit.run()].contains(commit.round()) && !restored_.contains(commit.run());
  if (!base || !base->committed() || closed) {
    world_.Violate(Describe(commit), " is closed out of order or twice");
    return;
  }
  if (!CheckCopy(world_, commit, committed_.contains({commit.run(), commit.restores()}))) return;
  const v1::RunRecord open = RunIn(before, RunKey(commit.run()));
  for (int i = 0; i < commit.participants_size(); ++i) {
    if (i > 0 && commit.participants(i).group() <= commit.participants(i - 1).group()) {
      world_.Violate(Describe(commit), " is not in group order");
    }
    CheckParticipant(view, open, commit, commit.participants(i));
  }
  const std::pair<std::string, uint32_t> version(commit.run(), commit.round());
  Rival made{commit, ValuesOf(run, commit)};
  const auto other = closed_.find(version);
  if (other == closed_.end()) {
    closed_[version] = commit;
    versions_[commit.run()][commit.round()] = std::move(made.values);
  } else if (!SameMaking(other->second, commit)) {
    world_.Count("rounds_closed_differently");
    Rival first{other->second, versions_[commit.run()][commit.round()]};
    if (!written_.AllStore(version)) {
      other->second = commit;
      versions_[commit.run()][commit.round()] = std::move(made.values);
      made = std::move(first);
    }
    rivals_[version].push_back(std::move(made));
  }
  world_.Count("rounds_closed");
  world_.Count("rounds_closed_short",
               commit.participants_size() < int64_t{GroupsOf(run.spec())} ? 1 : 0);
}

// The contribution of a group that has left (v1::Contributed.leaves) outlives its generation.
void Invariants::CheckParticipant(const View& view, const v1::RunRecord& run,
                                  const v1::CommitRecord& commit, const v1::Participant& in) {
  const auto it = generations_.find(in.generation());
  const GroupKey slot{commit.run(), in.group()};
  const auto current = view.current.find(slot);
  const bool left = absl::c_any_of(run.left(), [&](const v1::Contributed& contributed) {
    return contributed.round() == commit.round() && contributed.place().group() == in.group() &&
           contributed.place().generation() == in.generation();
  });
  if (left) world_.Count("contributions_of_left_groups");
  const bool lives = current != view.current.end() && current->second == in.generation();
  if (it == generations_.end() || it->second.group != slot || !it->second.started ||
      !(lives || left)) {
    world_.Violate(Describe(commit), " includes generation ", in.generation(), " of group ",
                   in.group(), ", which is not live");
    return;
  }
  if (it->second.members.size() != in.ranks()) {
    world_.Violate(Describe(commit), " has wrong ranks for group ", in.group());
  }
  const int shards = run.shards_size();
  const std::vector<Interval> exchanged = PositionsOf(run.spec(), commit.fragment());
  for (uint32_t rank = 0; rank < in.ranks(); ++rank) {
    const std::vector<Interval> owned = OwnedSpans(run.spec(), rank, in.ranks());
    for (int shard = 0; shard < shards; ++shard) {
      const std::vector<Interval> parts =
          PartsWithin(owned, SpanOfShard(run.spec(), shard, shards));
      const bool has_part = absl::c_any_of(
          exchanged, [&](Interval interval) { return !PartsWithin(parts, interval).empty(); });
      if (!has_part) continue;
      const ContributionKey key{commit.run(), commit.round(), in.group(), in.generation(), rank};
      if (acknowledged_.count({key, run.shards(shard)}) > 0) continue;
      // The shard has made the version of another coordinator, so it refuses late values, and will
      // refuse the order of this one.
      if (restored_.contains(run.run()) && written_.Contains({run.run(), commit.round()})) continue;
      // A rank that had not learned of the move has staged its values on the former aggregator,
      // which may have removed them, and stages them again.
      const auto move = moved_.at.find({run.run(), shard});
      if (move != moved_.at.end() && move->second + 1 == commit.round()) continue;
      world_.Violate(key.ToString(), " is committed, but shard ", shard, " never acknowledged it");
    }
  }
}

void Invariants::CheckChangedCommit(const v1::CommitRecord& before,
                                    const v1::CommitRecord& commit) {
  // A record that was rebuilt from some reports is rebuilt when others arrive.
  if (before.committed() && !restored_.contains(commit.run())) {
    world_.Violate(Describe(commit), " was committed and is changed");
  }
  if (commit.attempt() > before.attempt()) {
    // Another coordinator may have closed the round, and made it again.
    if (!restored_.contains(commit.run())) CheckNextAttempt(world_, before, commit);
    v1::RunRecord run;
    run.set_run(commit.run());
    *run.mutable_spec() = specs_[commit.run()];
    closed_[{commit.run(), commit.round()}] = commit;
    Values& values = versions_[commit.run()][commit.round()];
    first_attempts_.try_emplace({commit.run(), commit.round()}, Rival{before, std::move(values)});
    values = ValuesOf(run, commit);
    // Another coordinator has published the version.
    if (commit.committed()) committed_[{commit.run(), commit.round()}] = commit.participants_size();
    return;
  }
  if (!SameMaking(before, commit) || before.step() != commit.step() ||
      before.samples() != commit.samples()) {
    world_.Violate(Describe(commit), " was closed and has changed");
  }
  // A record that was rebuilt from reports has only the digests, and not those of all shards.
  std::map<uint32_t, uint64_t> digests;
  for (const v1::ShardDigest& shard : before.digests()) {
    if (shard.applied()) digests[shard.shard()] = shard.digest();
  }
  for (const v1::ShardDigest& shard : commit.digests()) {
    const auto was = digests.find(shard.shard());
    // A shard that has lost the version before, or the states of the outer optimizer, and needs
    // them, or is restored from a copy of the version before, applies the round again; so does one
    // whose disk has returned to an earlier attempt.
    const bool changed =
        was != digests.end() && (!shard.applied() || was->second != shard.digest());
    const v1::RunSpec& spec = specs_[commit.run()];
    const bool again = NeedsVersions(spec) || HasCopies(spec.averaging(), shards_[commit.run()]) ||
                       (commit.attempt() > 1 && !lost_disks_.empty());
    if (changed && !again) {
      world_.Violate(Describe(commit), " has changed the digest of shard ", shard.shard());
    }
  }
  if (commit.committed() && commit.round() > 0) {
    committed_[{commit.run(), commit.round()}] = commit.participants_size();
    earlier_failures_[commit.run()] = std::exchange(failures_[commit.run()], {});
    world_.Count("commits");
  }
}

// ---- Messages of the coordinator

}  // namespace cadre::simulation
