// Aggregators: their shards, and whether the versions on their disks match. Part of Run.
//
// A run chooses its aggregators once, by name, when the workers of its first group are idle; until
// its first version is recorded, the choice may still change. An aggregator answers OpenRun with
// the version and digest on its disk. The coordinator compares them with its own commits:
//
//   equal version and digest          the shard is open
//   one version ahead, while closing  the shard has applied the round, but its answer was lost
//   hollow, or older                  acknowledged data is lost
//   newer                             the record is older than a commit (run_behind.cc)
//   other digest                      the data is corrupt
//
// If acknowledged data is lost or corrupt, the shard is lost, and is restored from the workers
// (run_restore.cc). A disconnected aggregator only delays the run.
//
// OpenRun also carries the lowest accepted generation of each group and its key, so an aggregator
// that was disconnected has the newest fences before it accepts data. While it is connected, Fence
// reports the changes, or OpenRun if many groups change in one event. An aggregator accepts data
// only from generations whose key it has received.
#include "coordinator/run/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Number of Fence messages to one shard that an event may cause.
constexpr size_t kMaxFences = 64;
// Time after which a shard that is being created will not be: enough for hundreds of gigabytes.
constexpr absl::Duration kMaxCreation = absl::Minutes(30);

}  // namespace

bool Run::LostShardBeforeStart() const {
  return !commits_.newest().has_value() &&
         std::any_of(
             record_.shards().begin(), record_.shards().end(),
             [this](const std::string& name) { return !cluster_.members().Aggregator(name); });
}

// A queued run chooses its aggregators once the workers of a group are idle. Returns false if too
// few aggregators are connected.
bool Run::ChooseShards(size_t idle_workers) {
  if (LostShardBeforeStart()) {
    for (const std::string& name : record_.shards()) {
      const auto& former = record_.former_shards();
      if (std::find(former.begin(), former.end(), name) == former.end()) {
        record_.add_former_shards(name);
      }
    }
    record_.clear_shards();
    shards_.Reset();
    Save();
  }
  if (record_.shards_size() > 0) return true;
  std::vector<std::string> names;
  for (const std::string& id : cluster_.members().aggregators()) {
    const Member& member = *cluster_.members().Find(id);
    if (member.connected()) names.push_back(member.record.name());
  }
  std::sort(names.begin(), names.end());
  const size_t requested = spec().cluster().aggregators();
  if (names.empty() || names.size() < requested) return false;
  // There are too few workers, but they are reserved for this run, which is first in the queue.
  if (idle_workers < RanksPerGroup(spec())) return true;
  if (requested > 0) names.resize(requested);
  for (const std::string& name : names) record_.add_shards(name);
  Save();
  for (int shard = 0; shard < shards_.size(); ++shard) SendOpenRun(shard);
  return true;
}

void Run::OnAggregatorJoined(const Member& member, bool address_changed) {
  for (int shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_.Owns(member.record.name(), shard)) continue;
    SendOpenRun(shard);
    if (!address_changed) continue;
    for (const Slot& slot : slots_) {
      for (const std::string& rank : slot.record().members()) SendShardAddresses(rank);
    }
  }
}

void Run::OnAggregatorMessage(const Member& member, const v1::MemberMessage& message) {
  if (parked() || behind()) return;
  if (message.has_run_opened()) {
    OnRunOpened(member, message.run_opened());
  } else {
    OnApplied(member, message.applied());
  }
}

// The creation of a shard ends by itself if it fails (server/aggregator.h), but a disk may also
// hang. Afterwards there are values to keep, so the run waits, and its status has the reason.
void Run::OnDelayedOrder(const Member& member, const v1::DelayedOrder& delayed) {
  const bool creates = live() && !commits_.newest().has_value() && delayed.order() == "open_run";
  if (creates && delayed.seconds() >= absl::ToDoubleSeconds(kMaxCreation)) {
    End(v1::RUN_STATE_FAILED, Cluster::DelayText(member, delayed));
  }
}

void Run::OnRunOpened(const Member& member, const v1::RunOpened& opened) {
  if (!live()) {
    SendCloseRun(member);
    return;
  }
  const bool same_cut = int64_t{opened.shards()} == record_.shards_size();
  if (!same_cut || !shards_.Owns(member.record.name(), opened.shard())) {
    // The answer is malformed or belongs to an earlier assignment of shards.
    cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
    return;
  }
  if (!opened.error().empty()) {
    const std::string reason = absl::StrCat("aggregator ", member.record.name(),
                                            " cannot create version 0: ", opened.error());
    if (commits_.newest().has_value()) return Park(opened.shard(), reason);
    return End(v1::RUN_STATE_FAILED, reason);
  }
  if (ShardRestore* const restore = shards_.Lost(opened.shard())) {
    return OnHollow(opened.shard(), *restore, opened);
  }
  // Only the first answer on a stream shows the state that the aggregator had on its disk.
  if (shards_.IsOpen(opened.shard())) return;
  const uint32_t newest = record_.version() + (committing() ? 1 : 0);
  if (!opened.hollow() && opened.version() > newest) return FallBehind(opened.version());
  if (const std::string wrong = CheckOpened(member, opened); !wrong.empty()) {
    cluster_.Count("shards_lost");
    cluster_.ReportRun(v1::EVENT_KIND_SHARD_LOST, id(),
                       absl::StrCat("shard ", opened.shard(), " is lost: ", wrong));
    // A hollow shard without a version accepts nothing yet; it also reports version 0.
    const bool accepts = opened.hollow() && opened.version() > 0;
    if (committing() && NeedsVersions(spec())) {
      // What the shard has made of the round cannot be made again, because the states of the outer
      // optimizer are lost with it.
      commits_.Revoke(opened.shard());
      cluster_.out().Put(CommitKey(id(), commits_.closing()->round()), *commits_.closing());
    }
    const bool has_values = !opened.hollow() && opened.version() == record_.version() &&
                            commits_.ShardDigest(opened.shard()) == opened.digest();
    shards_.Lose(opened.shard(), ShardRestore(wrong,
                                              accepts || (has_values && NeedsVersions(spec()))
                                                  ? std::optional(opened.version())
                                                  : std::nullopt,
                                              has_values));
    return;
  }
  shards_.Open(opened);
  if (committing()) SendApply(opened.shard());
  if (!commits_.newest().has_value() && shards_.AllOpen()) {
    RecordInitialModel();
  }
}

std::string Run::CheckOpened(const Member& member, const v1::RunOpened& opened) const {
  const uint32_t version = record_.version();
  const std::string who = absl::StrCat("aggregator ", member.record.name(), " holds version ",
                                       opened.version(), " of shard ", opened.shard());
  if (opened.hollow()) {
    return absl::StrCat("aggregator ", member.record.name(), " has lost the values of shard ",
                        opened.shard());
  }
  if (committing() && opened.version() == version + 1) return "";
  const bool applied = committing() && commits_.closing()->digests(opened.shard()).applied();
  if (opened.version() == version && applied) {
    return absl::StrCat(who, ", but it had applied round ", version + 1,
                        ": acknowledged data is missing from its disk");
  }
  if (opened.version() < version) {
    return absl::StrCat(who, ", but version ", version,
                        " was committed: acknowledged data is missing from its disk");
  }
  const std::optional<uint64_t> digest = commits_.ShardDigest(opened.shard());
  if (digest.has_value() && *digest != opened.digest()) {
    return absl::StrCat(who, " with digest ", DigestHex(opened.digest()), ", but ",
                        DigestHex(*digest), " was committed: its data is corrupt");
  }
  return "";
}

// The digests of version 0 are stored as the commit of round 0.
void Run::RecordInitialModel() {
  v1::CommitRecord commit;
  commit.set_run(id());
  for (const auto& [shard, opened] : shards_.opened()) {
    v1::ShardDigest& digest = *commit.add_digests();
    digest.set_shard(shard);
    digest.set_applied(true);
    digest.set_digest(opened.digest());
  }
  const v1::CommitRecord& initial = commits_.SetInitial(std::move(commit));
  cluster_.out().Put(CommitKey(id(), 0), initial);
  record_.set_digest(initial.digest());
  Save();
}

void Run::SendToShard(uint32_t shard, const v1::CoordinatorMessage& message) {
  const Member* const member = cluster_.members().Aggregator(record_.shards(shard));
  if (member != nullptr) cluster_.SendTo(member->id(), message);
}

// A slot without a generation accepts only future generations.
uint32_t Run::LowestGeneration(const Slot& slot) const {
  return slot.waiting() ? cluster_.meta().generation() + 1 : slot.record().generation();
}

void Run::SendOpenRun(uint32_t shard, std::optional<uint32_t> hollow) {
  v1::CoordinatorMessage message;
  v1::OpenRun& open = *message.mutable_open_run();
  open.set_run(id());
  open.set_lineage(record_.lineage());
  *open.mutable_spec() = spec();
  open.set_shard(shard);
  open.set_shards(shards_.size());
  open.set_version(record_.version());
  if (hollow.has_value()) open.set_hollow(*hollow);
  for (const Slot& slot : slots_) {
    (*open.mutable_generations())[slot.group()] = LowestGeneration(slot);
    if (!slot.waiting()) (*open.mutable_keys())[slot.group()] = KeyOf(slot);
  }
  for (const auto& [group, generation] : fences_) {
    open.mutable_generations()->insert({group, generation});  // unless it still exists
  }
  SendToShard(shard, message);
}

// A large change takes one OpenRun, so that it cannot fill the queue of a stream.
void Run::SendFences() {
  for (int shard = 0; shard < shards_.size() && active(); ++shard) {
    // An OpenRun would replace the one that makes a lost shard hollow.
    if (fences_.size() > kMaxFences && shards_.Lost(shard) == nullptr) {
      SendOpenRun(shard);
      continue;
    }
    for (const auto& [group, generation] : fences_) {
      v1::CoordinatorMessage message;
      v1::Fence& fence = *message.mutable_fence();
      fence.set_run(id());
      fence.set_group(group);
      const Slot* const slot = group < slots_.size() ? &slots_[group] : nullptr;
      fence.set_generation(slot == nullptr ? generation : LowestGeneration(*slot));
      if (slot != nullptr && !slot->waiting()) fence.set_key(KeyOf(*slot));
      SendToShard(shard, message);
    }
  }
  fences_.clear();
}

void Run::SendCloseRun(const Member& aggregator) const {
  v1::CoordinatorMessage message;
  message.mutable_close_run()->set_run(id());
  cluster_.SendTo(aggregator.id(), message);
}

void Run::SendShardAddresses(absl::string_view member_id) {
  v1::CoordinatorMessage message;
  message.mutable_shard_addresses()->set_run(id());
  for (const v1::ShardAddress& address : Addresses()) {
    *message.mutable_shard_addresses()->add_shards() = address;
  }
  cluster_.SendTo(member_id, message);
}

std::vector<v1::ShardAddress> Run::Addresses() const {
  std::vector<v1::ShardAddress> addresses;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    v1::ShardAddress& address = addresses.emplace_back();
    address.set_shard(shard);
    address.set_name(record_.shards(shard));
    const Member* const member = cluster_.members().Aggregator(record_.shards(shard));
    if (member != nullptr) address.set_address(member->record.address());
  }
  return addresses;
}

}  // namespace cadre
