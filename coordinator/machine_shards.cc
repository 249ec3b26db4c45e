// Aggregators: which shards they hold, and whether what they hold fits. Part of Machine.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/keys.h"
#include "coordinator/machine.h"

namespace cadre {

bool Machine::Owns(const Member& member, const Job& job, uint32_t shard) {
  return shard < static_cast<uint32_t>(job.record.shards_size()) &&
         job.record.shards(static_cast<int>(shard)) == member.record.name();
}

bool Machine::LostShardBeforeStart(const Job& job) const {
  return !job.last.has_value() &&
         std::any_of(job.record.shards().begin(), job.record.shards().end(),
                     [this](const std::string& name) { return !members_.Aggregator(name); });
}

// A queued run takes its aggregators when a group's workers are there. False: they are not there.
bool Machine::ChooseShards(Job& job, size_t idle_workers) {
  if (LostShardBeforeStart(job)) {
    job.record.clear_shards();
    job.opened.clear();
    Save(job);
  }
  if (job.record.shards_size() > 0) return true;
  std::vector<std::string> names;
  for (const auto& [id, member] : members_.all()) {
    if (!member.worker() && member.connection != 0) names.push_back(member.record.name());
  }
  std::sort(names.begin(), names.end());
  const size_t wanted = job.spec().cluster().aggregators();
  if (names.empty() || names.size() < wanted) return false;
  // Too few workers: they are kept for this run all the same, it is the first in the queue.
  if (idle_workers < RanksPerGroup(job.spec())) return true;
  if (wanted > 0) names.resize(wanted);
  for (const std::string& name : names) job.record.add_shards(name);
  Save(job);
  SendOpenRuns(job);
  return true;
}

void Machine::OnAggregatorBack(Member& member, const v1::Hello& hello, bool moved) {
  for (const v1::ShardState& shard : hello.shards()) {
    const Job* const job = FindJob(shard.run());
    if (job == nullptr) continue;
    if (job->record.lineage() != shard.lineage()) {
      CountRefusal(v1::REFUSAL_WRONG_LINEAGE);
    } else if (!job->live()) {
      SendCloseRun(*job, member);
    }
  }
  for (auto& [number, job] : jobs_) {
    if (!job.live()) continue;
    for (uint32_t shard = 0; shard < static_cast<uint32_t>(job.record.shards_size()); ++shard) {
      if (!Owns(member, job, shard)) continue;
      SendOpenRun(job, shard);
      if (!moved) continue;
      for (const Slot& slot : job.slots) {
        for (const std::string& rank : slot.record().members()) SendShardAddresses(job, rank);
      }
    }
  }
}

void Machine::OnAggregatorGone(const Member& member) {
  for (auto& [number, job] : jobs_) {
    for (uint32_t shard = 0; shard < static_cast<uint32_t>(job.record.shards_size()); ++shard) {
      if (Owns(member, job, shard)) job.opened.erase(shard);
    }
  }
}

void Machine::OnRunOpened(Member& member, const v1::RunOpened& opened) {
  Job* const job = FindJob(opened.run());
  if (job == nullptr) {
    CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    return;
  }
  if (!job->live()) {
    SendCloseRun(*job, member);
    return;
  }
  const bool same_cut = opened.shards() == static_cast<uint32_t>(job->record.shards_size());
  if (!same_cut || !Owns(member, *job, opened.shard())) {
    // An answer to what was asked before the run chose other shards, or nonsense; either way it is
    // not taken.
    CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (!opened.error().empty()) {
    EndRun(*job, v1::FAILED,
           absl::StrCat("aggregator ", member.record.name(),
                        " cannot make version 0: ", opened.error()));
    return;
  }
  // OpenRun is sent again with every new generation; only the first answer on a stream tells what
  // the aggregator brought along.
  if (job->opened.count(opened.shard()) != 0) return;
  if (const std::string wrong = CheckOpened(*job, member, opened); !wrong.empty()) {
    EndRun(*job, v1::FAILED, wrong);
    return;
  }
  job->opened[opened.shard()] = opened;
  if (job->committing()) SendApply(*job, opened.shard());
  if (!job->last.has_value() &&
      job->opened.size() == static_cast<size_t>(job->record.shards_size())) {
    RecordInitialModel(*job);
  }
}

std::string Machine::CheckOpened(const Job& job, const Member& member,
                                 const v1::RunOpened& opened) const {
  const uint32_t version = job.record.version();
  const std::string who = absl::StrCat("aggregator ", member.record.name(), " holds version ",
                                       opened.version(), " of shard ", opened.shard());
  if (job.committing() && opened.version() == version + 1) return "";
  if (opened.version() < version) {
    return absl::StrCat(who, ", but version ", version,
                        " was committed: its disk has lost what it had acknowledged");
  }
  if (opened.version() > version) {
    return absl::StrCat(who, ", but only version ", version,
                        " was committed: the coordinator's store is older than the aggregator's");
  }
  const std::optional<uint64_t> digest = job.ShardDigestOf(opened.shard());
  if (digest.has_value() && *digest != opened.digest()) {
    return absl::StrCat(who, " with digest ", DigestHex(opened.digest()), ", but ",
                        DigestHex(*digest), " was committed: its data is damaged");
  }
  return "";
}

// The digests of version 0 are kept as the commit of round 0.
void Machine::RecordInitialModel(Job& job) {
  v1::CommitRecord commit;
  commit.set_run(job.id());
  for (const auto& [shard, opened] : job.opened) {
    v1::ShardDigest& digest = *commit.add_digests();
    digest.set_shard(shard);
    digest.set_applied(true);
    digest.set_digest(opened.digest());
  }
  commit.set_committed(true);
  commit.set_digest(SumOfDigests(commit));
  out_.Put(CommitKey(job.id(), 0), commit);
  job.record.set_digest(commit.digest());
  job.last = std::move(commit);
  Save(job);
}

void Machine::SendOpenRun(const Job& job, uint32_t shard) {
  const Member* const member = members_.Aggregator(job.record.shards(static_cast<int>(shard)));
  if (member == nullptr) return;
  v1::CoordinatorMessage message;
  v1::OpenRun& open = *message.mutable_open_run();
  open.set_run(job.id());
  open.set_lineage(job.record.lineage());
  *open.mutable_spec() = job.spec();
  open.set_shard(shard);
  open.set_shards(static_cast<uint32_t>(job.record.shards_size()));
  for (const Slot& slot : job.slots) {
    // A slot without a generation takes nothing that has been given out so far.
    (*open.mutable_generations())[slot.group()] =
        slot.waiting() ? meta_.generation() + 1 : slot.record().generation();
  }
  SendTo(member->id(), message);
}

void Machine::SendOpenRuns(const Job& job) {
  for (uint32_t shard = 0; shard < static_cast<uint32_t>(job.record.shards_size()); ++shard) {
    SendOpenRun(job, shard);
  }
}

void Machine::SendCloseRun(const Job& job, const Member& member) {
  v1::CoordinatorMessage message;
  message.mutable_close_run()->set_run(job.id());
  SendTo(member.id(), message);
}

void Machine::SendShardAddresses(const Job& job, absl::string_view member_id) {
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run(job.id());
  for (const v1::ShardAddress& address : Addresses(job)) {
    *message.mutable_shard_addresses()->add_shards() = address;
  }
  SendTo(member_id, message);
}

std::vector<v1::ShardAddress> Machine::Addresses(const Job& job) const {
  std::vector<v1::ShardAddress> addresses;
  for (uint32_t shard = 0; shard < static_cast<uint32_t>(job.record.shards_size()); ++shard) {
    const Member* const member = members_.Aggregator(job.record.shards(static_cast<int>(shard)));
    if (member == nullptr) continue;
    v1::ShardAddress& address = addresses.emplace_back();
    address.set_shard(shard);
    address.set_address(member->record.address());
  }
  return addresses;
}

}  // namespace cadre
