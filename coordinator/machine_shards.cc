// Aggregators: their shards, and whether the versions on their disks match. Part of Machine.
//
// A run chooses its aggregators once, by name, when the workers of its first group are idle; until
// its first version is recorded, the choice may still change. An aggregator answers OpenRun with
// the version and digest on its disk. The coordinator compares them with its own commits:
//
//   equal version and digest          the shard is open
//   one version ahead, while closing  the shard has applied the round, but its answer was lost
//   older                             acknowledged data is lost: the run fails
//   newer                             the coordinator's store is older than a commit: the run fails
//   other digest                      the data is corrupt: the run fails
//
// A run fails in these cases because no correct version can be derived from what is left;
// continuing would silently change the model. A disconnected aggregator, in contrast, only delays
// the run.
//
// OpenRun also carries the lowest accepted generation of each group. It is sent again whenever one
// changes, so an aggregator that was disconnected has the newest fences before it accepts data.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"

namespace cadre {

bool Machine::Owns(const Member& member, const Run& run, uint32_t shard) {
  return int64_t{shard} < run.record.shards_size() &&
         run.record.shards(shard) == member.record.name();
}

bool Machine::LostShardBeforeStart(const Run& run) const {
  return !run.last.has_value() &&
         std::any_of(run.record.shards().begin(), run.record.shards().end(),
                     [this](const std::string& name) { return !members_.Aggregator(name); });
}

// A queued run chooses its aggregators once the workers of a group are idle. Returns false if too
// few aggregators are connected.
bool Machine::ChooseShards(Run& run, size_t idle_workers) {
  if (LostShardBeforeStart(run)) {
    run.record.clear_shards();
    run.opened.clear();
    Save(run);
  }
  if (run.record.shards_size() > 0) return true;
  std::vector<std::string> names;
  for (const auto& [id, member] : members_.all()) {
    if (!member.worker() && member.connected()) names.push_back(member.record.name());
  }
  std::sort(names.begin(), names.end());
  const size_t requested = run.spec().cluster().aggregators();
  if (names.empty() || names.size() < requested) return false;
  // There are too few workers, but they are reserved for this run, which is first in the queue.
  if (idle_workers < RanksPerGroup(run.spec())) return true;
  if (requested > 0) names.resize(requested);
  for (const std::string& name : names) run.record.add_shards(name);
  Save(run);
  SendOpenRuns(run);
  return true;
}

void Machine::OnAggregatorJoined(Member& member, const v1::Hello& hello, bool address_changed) {
  for (const v1::ShardState& shard : hello.shards()) {
    const Run* const run = FindRun(shard.run());
    if (run == nullptr) continue;
    if (run->record.lineage() != shard.lineage()) {
      CountRefusal(v1::REFUSAL_WRONG_LINEAGE);
    } else if (!run->live()) {
      SendCloseRun(*run, member);
    }
  }
  for (auto& [number, run] : runs_) {
    if (!run.live()) continue;
    for (int shard = 0; shard < run.record.shards_size(); ++shard) {
      if (!Owns(member, run, shard)) continue;
      SendOpenRun(run, shard);
      if (!address_changed) continue;
      for (const Slot& slot : run.slots) {
        for (const std::string& rank : slot.record().members()) SendShardAddresses(run, rank);
      }
    }
  }
}

void Machine::OnAggregatorLost(const Member& member) {
  for (auto& [number, run] : runs_) {
    for (int shard = 0; shard < run.record.shards_size(); ++shard) {
      if (Owns(member, run, shard)) run.opened.erase(shard);
    }
  }
}

void Machine::OnRunOpened(Member& member, const v1::RunOpened& opened) {
  Run* const run = FindRun(opened.run());
  if (run == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    return;
  }
  if (!run->live()) {
    SendCloseRun(*run, member);
    return;
  }
  const bool same_cut = int64_t{opened.shards()} == run->record.shards_size();
  if (!same_cut || !Owns(member, *run, opened.shard())) {
    // The answer is malformed or belongs to an earlier assignment of shards.
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (!opened.error().empty()) {
    EndRun(*run, v1::RUN_STATE_FAILED,
           absl::StrCat("aggregator ", member.record.name(),
                        " cannot create version 0: ", opened.error()));
    return;
  }
  // OpenRun is sent again with every new generation; only the first answer on a stream shows the
  // state that the aggregator had on its disk.
  if (run->opened.count(opened.shard()) != 0) return;
  if (const std::string wrong = CheckOpened(*run, member, opened); !wrong.empty()) {
    EndRun(*run, v1::RUN_STATE_FAILED, wrong);
    return;
  }
  run->opened[opened.shard()] = opened;
  if (run->committing()) SendApply(*run, opened.shard());
  if (!run->last.has_value() && std::ssize(run->opened) == run->record.shards_size()) {
    RecordInitialModel(*run);
  }
}

std::string Machine::CheckOpened(const Run& run, const Member& member,
                                 const v1::RunOpened& opened) const {
  const uint32_t version = run.record.version();
  const std::string who = absl::StrCat("aggregator ", member.record.name(), " holds version ",
                                       opened.version(), " of shard ", opened.shard());
  if (run.committing() && opened.version() == version + 1) return "";
  if (opened.version() < version) {
    return absl::StrCat(who, ", but version ", version,
                        " was committed: acknowledged data is missing from its disk");
  }
  if (opened.version() > version) {
    return absl::StrCat(who, ", but only version ", version,
                        " was committed: the coordinator's store is older than the aggregator's");
  }
  const std::optional<uint64_t> digest = run.ShardDigestOf(opened.shard());
  if (digest.has_value() && *digest != opened.digest()) {
    return absl::StrCat(who, " with digest ", DigestHex(opened.digest()), ", but ",
                        DigestHex(*digest), " was committed: its data is corrupt");
  }
  return "";
}

// The digests of version 0 are stored as the commit of round 0.
void Machine::RecordInitialModel(Run& run) {
  v1::CommitRecord commit;
  commit.set_run(run.id());
  for (const auto& [shard, opened] : run.opened) {
    v1::ShardDigest& digest = *commit.add_digests();
    digest.set_shard(shard);
    digest.set_applied(true);
    digest.set_digest(opened.digest());
  }
  commit.set_committed(true);
  commit.set_digest(SumOfDigests(commit));
  out_.Put(CommitKey(run.id(), 0), commit);
  run.record.set_digest(commit.digest());
  run.last = std::move(commit);
  Save(run);
}

void Machine::SendOpenRun(const Run& run, uint32_t shard) {
  const Member* const member = members_.Aggregator(run.record.shards(shard));
  if (member == nullptr) return;
  v1::CoordinatorMessage message;
  v1::OpenRun& open = *message.mutable_open_run();
  open.set_run(run.id());
  open.set_lineage(run.record.lineage());
  *open.mutable_spec() = run.spec();
  open.set_shard(shard);
  open.set_shards(run.record.shards_size());
  for (const Slot& slot : run.slots) {
    // A slot without a generation accepts only future generations.
    (*open.mutable_generations())[slot.group()] =
        slot.waiting() ? meta_.generation() + 1 : slot.record().generation();
  }
  SendTo(member->id(), message);
}

void Machine::SendOpenRuns(const Run& run) {
  for (int shard = 0; shard < run.record.shards_size(); ++shard) {
    SendOpenRun(run, shard);
  }
}

void Machine::SendCloseRun(const Run& run, const Member& member) {
  v1::CoordinatorMessage message;
  message.mutable_close_run()->set_run(run.id());
  SendTo(member.id(), message);
}

void Machine::SendShardAddresses(const Run& run, absl::string_view member_id) {
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run(run.id());
  for (const v1::ShardAddress& address : Addresses(run)) {
    *message.mutable_shard_addresses()->add_shards() = address;
  }
  SendTo(member_id, message);
}

std::vector<v1::ShardAddress> Machine::Addresses(const Run& run) const {
  std::vector<v1::ShardAddress> addresses;
  for (int shard = 0; shard < run.record.shards_size(); ++shard) {
    const Member* const member = members_.Aggregator(run.record.shards(shard));
    if (member == nullptr) continue;
    v1::ShardAddress& address = addresses.emplace_back();
    address.set_shard(shard);
    address.set_address(member->record.address());
  }
  return addresses;
}

}  // namespace cadre
