#include "tests/simulation/simulated_aggregator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/client/refusal.h"
#include "server/run_terms.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

constexpr absl::Duration kRetryWait = absl::Seconds(5);

std::vector<Interval> Intervals(const v1::RunSpec& spec,
                                const google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
  const std::vector<int64_t> begins = TensorBegins(spec);
  std::vector<Interval> spans;
  for (const v1::Range& range : ranges) {
    const int64_t first = begins[range.tensor()];
    const int64_t begin = range.begin();
    const int64_t end = range.end();
    spans.push_back({first + begin, first + end});
  }
  return spans;
}

// Words have no distances; these terms are those of groups that differ by pure noise.
DiscrepancyTerms DiscrepancyOf(const ApplyPlan& plan) { return {plan.groups.size() - 1.0, 1}; }

v1::MemberMessage AnswerTo(const v1::Apply& apply) {
  v1::MemberMessage message;
  v1::Applied& applied = *message.mutable_applied();
  applied.set_run(apply.run());
  applied.set_shard(apply.shard());
  applied.set_round(apply.round());
  return message;
}

}  // namespace

// ---- The process

void SimulatedAggregator::Start(bool move) {
  if (up()) return;
  ++process_;
  incarnation_ = absl::StrCat(name_, ".", process_);
  if (address_.empty() || move) address_ = absl::StrCat(name_, ":", process_);
  world_.Log(name_, "    starts at ", address_);
  ledger_ = std::make_unique<Ledger>();
  RestoreLedger();
  link_ = std::make_unique<MembershipLink>(
      world_, network_,
      MembershipLink::Options{
          .host = name_,
          .schema_hash = schema_hash_,
          .hello = [this] { return MakeHello(); },
          .on_message = [this](const v1::CoordinatorMessage& m) { OnMessage(m); },
          .on_connection = [](bool) {},
          .heartbeat = [] { return v1::Heartbeat(); }});
  link_->Start();
}

void SimulatedAggregator::Kill(bool host_lost) {
  if (!up()) return;
  world_.Count("aggregator_kills");
  world_.Log(name_, "    crashes");
  life_.End();
  link_->Stop(host_lost);
  ledger_.reset();
  orders_.clear();
  busy_ = false;
  LoseUnsynced();
}

v1::Hello SimulatedAggregator::MakeHello() const {
  v1::Hello hello;
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(name_);
  hello.set_incarnation(incarnation_);
  hello.set_address(address_);
  hello.set_host(name_);
  for (const v1::ShardState& state : ledger_->States()) *hello.add_shards() = state;
  return hello;
}

void SimulatedAggregator::LoseUnsynced() {
  for (auto& [run, folder] : disk_) {
    for (auto it = folder.contributions.begin(); it != folder.contributions.end();) {
      File& file = it->second;
      if (!file.synced) {
        file.stored_chunks = world_.dice.Between(0, file.stored_chunks);
      }
      const bool nameless = !file.synced && world_.dice.Chance(0.3);
      it = nameless ? folder.contributions.erase(it) : std::next(it);
    }
  }
}

void SimulatedAggregator::RestoreLedger() {
  for (auto& [run, folder] : disk_) {
    std::vector<StoredVersion> versions;
    for (const auto& [number, words] : folder.versions) {
      versions.push_back({number,
                          {ShardDigest(folder.open, words), folder.discrepancies[number]},
                          folder.orders[number]});
    }
    std::vector<FoundContribution> found;
    for (const auto& [key, file] : folder.contributions) {
      found.push_back({file.header, file.stored_chunks});
    }
    const absl::StatusOr<RunTerms> terms = RunTermsOf(folder.open);
    Remove(ledger_->Restore(*terms, folder.closed, versions, found), "obsolete after a restart");
    while (folder.versions.size() > 2) folder.versions.erase(folder.versions.begin());
  }
}

void SimulatedAggregator::Remove(const std::vector<ContributionKey>& keys, absl::string_view why) {
  for (const ContributionKey& key : keys) {
    RunFolder& folder = disk_[key.run];
    invariants_.OnContributionRemoved(name_, key,
                                      folder.versions.empty() ? 0 : folder.versions.rbegin()->first,
                                      folder.closed, why);
    folder.contributions.erase(key);
  }
}

absl::Status SimulatedAggregator::Refuse(const Refused& refused) {
  const std::string name = RefusalName(refused.refusal);
  world_.Count(absl::StrCat("ledger_refused_", name));
  world_.Log(name_, "    refuses: ", name, ": ", refused.reason);
  return RefusalStatus(refused.refusal, refused.reason);
}

Interval SimulatedAggregator::SpanOf(const v1::OpenRun& open) const {
  return ShardSpan(TensorBegins(open.spec()).back(), open.shard(), open.shards());
}

uint64_t SimulatedAggregator::ShardDigest(const v1::OpenRun& open, const Words& words) const {
  return DigestOf(words, {SpanOf(open)});
}

std::optional<uint32_t> SimulatedAggregator::VersionOnDisk(const std::string& run) const {
  auto it = disk_.find(run);
  if (it == disk_.end() || it->second.versions.empty()) return std::nullopt;
  return it->second.versions.rbegin()->first;
}

bool SimulatedAggregator::HasContribution(const ContributionKey& key) const {
  auto it = disk_.find(key.run);
  if (it == disk_.end()) return false;
  auto file = it->second.contributions.find(key);
  return file != it->second.contributions.end() &&
         file->second.stored_chunks == file->second.chunks;
}

// ---- Orders

void SimulatedAggregator::OnMessage(const v1::CoordinatorMessage& message) {
  if (!message.has_open_run() && !message.has_apply() && !message.has_close_run() &&
      !message.has_fence()) {
    return;
  }
  orders_.push_back(message);
  if (!busy_) NextOrder();
}

void SimulatedAggregator::Then(Timeline::Work work) {
  if (world_.dice.Chance(world_.faults.crash_aggregator)) {
    world_.Count("aggregator_crashes_in_orders");
    world_.timeline.After(absl::ZeroDuration(), [this, process = process_] {
      if (process == process_ && up()) {
        Kill(/*host_lost=*/false);
        world_.timeline.After(world_.dice.Between(absl::Milliseconds(200), absl::Seconds(8)),
                              [this, process] {
                                if (process == process_) Start(world_.dice.Chance(0.3));
                              });
      }
    });
    return;
  }
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), absl::Milliseconds(60)), life_,
                        std::move(work));
}

void SimulatedAggregator::NextOrder() {
  if (orders_.empty()) return;
  busy_ = true;
  Then([this] {
    const v1::CoordinatorMessage order = std::move(orders_.front());
    orders_.pop_front();
    if (order.has_open_run()) return OpenRun(order);
    if (order.has_apply()) return Apply(order);
    if (order.has_fence()) return Fence(order.fence());
    CloseRun(order.close_run().run());
  });
}

void SimulatedAggregator::Done() {
  busy_ = false;
  NextOrder();
}

void SimulatedAggregator::RetryLater(const v1::CoordinatorMessage& order) {
  world_.timeline.After(kRetryWait, life_, [this, order] { OnMessage(order); });
  Done();
}

void SimulatedAggregator::OpenRun(const v1::CoordinatorMessage& order) {
  const v1::OpenRun& open = order.open_run();
  const absl::StatusOr<RunTerms> terms = RunTermsOf(open);
  if (!terms.ok()) {
    world_.Violate(name_, " cannot read the terms of ", open.run(), ": ",
                   terms.status().ToString());
    return;
  }
  Decision<Opened> decision = ledger_->OpenRun(*terms);
  if (const auto* refused = std::get_if<Refused>(&decision)) {
    return absl::IsInvalidArgument(Refuse(*refused)) ? Done() : RetryLater(order);
  }
  const Opened opened = std::get<Opened>(std::move(decision));
  if (opened.replaces_lineage) disk_.erase(open.run());
  Remove(opened.dropped, "incomplete and fenced");
  Then([this, open, create = opened.make_version_zero, discarded = opened.discarded,
        hollow = opened.hollow] {
    RunFolder& folder = disk_[open.run()];
    if (create || !discarded.empty()) folder.versions.clear();
    folder.open = open;
    folder.open.clear_hollow();
    if (hollow) folder.open.set_hollow(*hollow);
    folder.closed = false;
    if (!create) return AnswerOpened(open);
    Then([this, open] {
      const Words words = InitialWords(open.spec(), SpanOf(open));
      RunFolder& folder = disk_[open.run()];
      folder.versions = {{0, words}};
      folder.discrepancies.clear();
      ledger_->VersionDurable(open.run(), 0, {ShardDigest(open, words)});
      AnswerOpened(open);
    });
  });
}

// The new generation is part of the terms under which the run is open.
void SimulatedAggregator::Fence(const v1::Fence& fence) {
  const auto folder = disk_.find(fence.run());
  if (folder == disk_.end() || folder->second.closed) return Done();
  v1::CoordinatorMessage order;
  *order.mutable_open_run() = folder->second.open;
  uint32_t& generation = (*order.mutable_open_run()->mutable_generations())[fence.group()];
  generation = std::max(generation, fence.generation());
  OpenRun(order);
}

void SimulatedAggregator::AnswerOpened(const v1::OpenRun& open) {
  v1::MemberMessage message;
  v1::RunOpened& answer = *message.mutable_run_opened();
  answer.set_run(open.run());
  answer.set_shard(open.shard());
  answer.set_shards(open.shards());
  answer.set_hollow(true);
  if (disk_[open.run()].open.has_hollow()) answer.set_version(disk_[open.run()].open.hollow());
  for (const v1::ShardState& state : ledger_->States()) {
    if (state.run() != open.run()) continue;
    answer.set_hollow(false);
    answer.set_version(state.version());
    answer.set_digest(state.digest());
  }
  link_->Send(message);
  Done();
}

void SimulatedAggregator::Apply(const v1::CoordinatorMessage& order) {
  const v1::Apply& apply = order.apply();
  const ApplyDecision decision = ledger_->BeginApply(apply);
  if (const auto* already = std::get_if<AlreadyApplied>(&decision)) {
    world_.Count("applies_repeated");
    return AnswerApplied(apply, already->stats, "");
  }
  if (const auto* refused = std::get_if<Refused>(&decision)) {
    return AnswerApplied(apply, {}, std::string(Refuse(*refused).message()));
  }
  if (const auto* incomplete = std::get_if<Incomplete>(&decision)) {
    v1::MemberMessage message = AnswerTo(apply);
    message.mutable_applied()->mutable_missing()->Add(incomplete->groups.begin(),
                                                      incomplete->groups.end());
    link_->Send(message);
    return RetryLater(order);
  }
  const auto* plan = std::get_if<ApplyPlan>(&decision);
  if (plan == nullptr) {
    world_.Violate(name_, ": two orders are executed simultaneously");
    return;
  }
  Then([this, order, plan = *plan] { WriteMean(order, plan); });
}

void SimulatedAggregator::WriteMean(const v1::CoordinatorMessage& order, const ApplyPlan& plan) {
  const v1::Apply& apply = order.apply();
  if (world_.dice.Chance(world_.faults.full_disk)) {
    world_.Count("disks_full");
    world_.Log(name_, "    has no room for version ", plan.round, " of ", plan.run);
    ledger_->ApplyFailed(plan.run, plan.round);
    return RetryLater(order);
  }
  RunFolder& folder = disk_[plan.run];
  Words words(TensorBegins(folder.open.spec()).back());
  std::vector<GroupSource> groups = plan.groups;
  if (world_.plant == Plant::kShuffleApply) std::reverse(groups.begin(), groups.end());
  if (world_.plant == Plant::kApplyTwice) groups.push_back(groups.front());
  for (const GroupSource& group : groups) {
    for (const SourceSegment& segment : group.segments) {
      const File& file = folder.contributions[segment.key];
      if (file.words.empty() || file.stored_chunks != file.chunks) {
        world_.Violate(name_, " must apply ", segment.key.ToString(), ", which is not on its disk");
        return;
      }
      for (int64_t p = segment.span.begin; p < segment.span.end; ++p) {
        words[p] = AddToMean(words[p], group.weight, file.words[p]);
      }
    }
  }
  if (world_.plant == Plant::kSkipApply) words = folder.versions.rbegin()->second;
  folder.versions[plan.round] = words;
  folder.orders[plan.round] = plan.order;
  world_.Log(name_, "    writes version ", plan.round, " of ", plan.run);
  invariants_.OnVersionWritten(name_, apply, plan, words);
  if (plan.groups.size() > 1) folder.discrepancies[plan.round] = DiscrepancyOf(plan);
  const VersionStats stats{ShardDigest(folder.open, words), folder.discrepancies[plan.round]};
  Then([this, apply, stats] {
    RunFolder& folder = disk_[apply.run()];
    Remove(ledger_->VersionDurable(apply.run(), apply.round(), stats), "applied");
    while (folder.versions.size() > 2) folder.versions.erase(folder.versions.begin());
    AnswerApplied(apply, stats, "");
  });
}

void SimulatedAggregator::AnswerApplied(const v1::Apply& apply, const VersionStats& stats,
                                        const std::string& error) {
  v1::MemberMessage message = AnswerTo(apply);
  v1::Applied& applied = *message.mutable_applied();
  applied.set_digest(stats.digest);
  applied.set_variance_between_groups(stats.discrepancy.variance_between_groups);
  applied.set_displacement(stats.discrepancy.displacement);
  applied.set_error(error);
  link_->Send(message);
  Done();
}

void SimulatedAggregator::CloseRun(const std::string& run) {
  auto it = disk_.find(run);
  if (it != disk_.end()) {
    it->second.closed = true;
    Remove(ledger_->CloseRun(run), "the run has ended");
  }
  Done();
}

// ---- The Rounds service

absl::StatusOr<SimulatedAggregator::Staging> SimulatedAggregator::Stage(
    const v1::ContributionHeader& header) {
  Decision<StageGrant> decision = ledger_->Stage(header);
  if (const auto* refused = std::get_if<Refused>(&decision)) return Refuse(*refused);
  const StageGrant grant = std::get<StageGrant>(std::move(decision));
  Remove(grant.dropped, "fenced by a newer generation");
  File& file = disk_[header.run()].contributions[grant.key];
  if (grant.fresh) {
    file = File();
    file.header = header;
    file.chunks = grant.chunks;
    file.words.resize(TensorBegins(disk_[header.run()].open.spec()).back());
  } else if (grant.next_chunk > 0) {
    world_.Count("stagings_resumed");
  }
  return Staging{grant, process_};
}

absl::StatusOr<bool> SimulatedAggregator::Put(const Staging& staging, uint32_t index,
                                              const Words& words) {
  const StageGrant& grant = staging.grant;
  if (const auto refused = ledger_->CheckChunk(grant.key, grant.attempt, index,
                                               words.size() * sizeof(float), /*crc_fits=*/true)) {
    return Refuse(*refused);
  }
  RunFolder& folder = disk_[grant.key.run];
  File& file = folder.contributions[grant.key];
  int64_t at = 0;
  const int64_t first = int64_t{index} * file.header.chunk_elements();
  for (const Interval& span : Intervals(folder.open.spec(), file.header.ranges())) {
    for (int64_t p = span.begin; p < span.end; ++p, ++at) {
      if (at >= first && at < first + std::ssize(words)) file.words[p] = words[at - first];
    }
  }
  ++file.stored_chunks;
  return ledger_->ChunkStored(grant.key, grant.attempt);
}

absl::Status SimulatedAggregator::Finish(const Staging& staging) {
  const ContributionKey& key = staging.grant.key;
  RunFolder& folder = disk_[key.run];
  auto it = folder.contributions.find(key);
  if (it != folder.contributions.end() && world_.plant != Plant::kEarlyStaged) {
    it->second.synced = true;
  }
  if (ledger_->ContributionDurable(key, staging.grant.attempt)) {
    world_.Count("contributions_staged");
    return absl::OkStatus();
  }
  return Refuse(
      {v1::REFUSAL_OUT_OF_ORDER, absl::StrCat(key.ToString(), ": dropped while it was staged")});
}

absl::StatusOr<Words> SimulatedAggregator::Pull(const v1::PullRequest& request) {
  const PullDecision decision = ledger_->Pull(request);
  if (const auto* refused = std::get_if<Refused>(&decision)) return Refuse(*refused);
  if (const auto* none = std::get_if<NoSuchVersion>(&decision)) {
    world_.Count("pulls_of_old_versions");
    return absl::FailedPreconditionError(absl::StrCat(
        "version ", none->requested, " is not stored; version ", none->current, " is"));
  }
  const PullGrant& grant = std::get<PullGrant>(decision);
  const std::map<uint32_t, Words>& versions = disk_[request.run()].versions;
  if (world_.plant == Plant::kServeOldVersion) return versions.begin()->second;
  return versions.at(grant.version);
}

}  // namespace cadre::simulation
