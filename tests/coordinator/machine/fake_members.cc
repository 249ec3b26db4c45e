#include "tests/coordinator/machine/fake_members.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace cadre::testing {
namespace {

uint64_t Mix(uint64_t digest, const v1::Apply& apply) {
  for (const v1::Participant& in : apply.participants()) {
    digest = RandomBits(digest, RandomStream::kTest, in.generation(), in.samples() + in.group());
  }
  return digest;
}

// An order with a higher attempt makes the newest version again.
void MaybeRetract(const v1::Apply& apply, FakeAggregator::Shard& shard) {
  const bool again = apply.round() == shard.version && shard.published < apply.round() &&
                     apply.attempt() > shard.newest.attempt();
  if (again) shard.digests.erase(shard.version--);
}

}  // namespace

v1::Traced TracedBy(const v1::TraceSteps& trace) {
  v1::Traced traced;
  *traced.mutable_place() = trace.place();
  traced.set_request(trace.request());
  for (uint32_t step = 0; step < trace.steps(); ++step) {
    v1::TraceEvent& event = *traced.add_events();
    event.set_name("step");
    event.set_category("step");
    event.set_begin_us(1000 * (step + 1));
    event.set_duration_us(900);
    event.set_step(step);
  }
  return traced;
}

void FakeMembers::DropPlace(FakeWorker& worker) {
  worker.assignment.reset();
  worker.start.reset();
  worker.prepared.reset();
  worker.measured.reset();
  worker.contributed.reset();
  worker.adopted.reset();
  worker.evaluated.reset();
  worker.next_step.reset();
  worker.pulling.reset();
}

void FakeMembers::Receive(FakeWorker& worker, const v1::CoordinatorMessage& message) {
  worker.received.push_back(message);
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWelcome:
      worker.member_id = message.welcome().member_id();
      Resend(worker);
      break;
    case v1::CoordinatorMessage::kRefused:
      if (message.refused().refusal() == v1::REFUSAL_UNKNOWN_MEMBER) {
        worker.member_id.clear();
        DropPlace(worker);
      }
      worker.connection = 0;
      break;
    case v1::CoordinatorMessage::kAssignment:
      if (worker.assignment.has_value() &&
          worker.place().generation() == message.assignment().place().generation()) {
        break;
      }
      DropPlace(worker);
      worker.assignment = message.assignment();
      break;
    case v1::CoordinatorMessage::kStart:
      OnStart(worker, message.start());
      break;
    case v1::CoordinatorMessage::kRelease:
      if (worker.assignment.has_value() &&
          message.release().place().generation() == worker.place().generation()) {
        DropPlace(worker);
      }
      break;
    case v1::CoordinatorMessage::kDecision:
      OnDecision(worker, message.decision());
      break;
    case v1::CoordinatorMessage::kRestage:
      if (behaviour.restage) OnRestage(worker, message.restage());
      break;
    case v1::CoordinatorMessage::kTraceSteps:
      if (behaviour.trace) Post(worker.connection, TracedBy(message.trace_steps()));
      break;
    default:
      break;
  }
}

void FakeMembers::OnStart(FakeWorker& worker, const v1::Start& start) {
  if (worker.start.has_value() || !worker.assignment.has_value()) return;
  worker.prepared.reset();
  worker.start = start;
  worker.version = start.version();
  worker.step = start.step();
  worker.next_step = start.next_step();
  if (worker.lead() && !worker.assignment->shards().empty() && behaviour.load) {
    ReportLoaded(worker);
  }
  if (!worker.assignment.has_value()) return;
  Evaluate(worker, worker.version, start.evaluate_begin(), start.evaluate_end());
}

void FakeMembers::OnDecision(FakeWorker& worker, const v1::Decision& decision) {
  const bool answers =
      worker.contributed.has_value() && worker.contributed->round() == decision.round();
  const bool at_end = worker.next_step == 0u && decision.next_step() == 0;
  if (!worker.start.has_value() || (!answers && !at_end)) return;
  worker.pulling = decision;
  if (!decision.adopt() || CanPull(worker, decision.version())) LoadDecided(worker);
}

bool FakeMembers::CanPull(const FakeWorker& worker, uint32_t version) const {
  if (behaviour.slow_pulls.contains(worker.place().group())) return false;
  const auto has = std::count_if(
      aggregators_.begin(), aggregators_.end(), [&](const FakeAggregator& aggregator) {
        const auto found = aggregator.shards.find(worker.place().run());
        return found != aggregator.shards.end() && found->second.digests.contains(version);
      });
  return has >= worker.assignment->shards_size();
}

bool FakeMembers::CanStage(const FakeWorker& worker) const {
  return std::all_of(
      aggregators_.begin(), aggregators_.end(), [&](const FakeAggregator& aggregator) {
        const auto found = aggregator.shards.find(worker.place().run());
        if (found == aggregator.shards.end()) return !aggregator.wiped;
        return !found->second.hollow.has_value() || found->second.hollow == worker.version;
      });
}

// The values of a group are those of its version until it contributes, and its contribution until
// it has pulled the next version.
void FakeMembers::OnRestage(FakeWorker& worker, const v1::Restage& restage) {
  if (!worker.assignment.has_value() ||
      worker.place().generation() != restage.place().generation()) {
    return;
  }
  const FakeWorker& lead = Lead(restage.place().run(), restage.place().group());
  const uint32_t round = lead.pulling.has_value() ? lead.pulling->round() : lead.version + 1;
  const bool contribution =
      (lead.contributed.has_value() || lead.pulling.has_value()) && round == restage.round();
  const bool complete = lead.start.has_value() && !lead.contributed.has_value() &&
                        !lead.pulling.has_value() && lead.version == restage.round();
  v1::Restaged restaged;
  *restaged.mutable_place() = restage.place();
  restaged.set_shard(restage.shard());
  restaged.set_round(restage.round());
  restaged.set_seed(restage.seed());
  if (restage.seed() ? !complete : !contribution) restaged.set_error("not held");
  if (restaged.error().empty()) {
    for (FakeAggregator& aggregator : aggregators_) {
      const auto found = aggregator.shards.find(restage.place().run());
      if (found == aggregator.shards.end() || found->second.shard != restage.shard()) continue;
      found->second.staged.emplace(restage.round(), restage.seed(), restage.place().group(),
                                   restage.place().rank());
      if (const std::optional<v1::Apply> waiting = found->second.waiting) {
        OnApply(aggregator, *waiting);
      }
    }
  }
  Post(worker.connection, restaged);
}

void FakeMembers::LoadDecided(FakeWorker& worker) {
  const v1::Decision decision = *worker.pulling;
  worker.pulling.reset();
  worker.contributed.reset();
  worker.step = decision.step();
  worker.next_step = decision.next_step();
  if (decision.adopt()) {
    worker.version = decision.version();
    EXPECT_EQ(decision.digest(), DigestOf(worker.place().run(), worker.version));
    if (behaviour.adopt) ReportLoaded(worker);
  }
  if (worker.assignment.has_value()) {
    Evaluate(worker, decision.version(), decision.evaluate_begin(), decision.evaluate_end());
  }
}

void FakeMembers::ReportLoaded(FakeWorker& worker) {
  v1::Adopted adopted;
  *adopted.mutable_place() = worker.place();
  adopted.set_version(worker.version);
  adopted.set_digest(DigestOf(worker.place().run(), worker.version) + behaviour.digest_error);
  adopted.set_payload_bytes(100);
  adopted.set_message_bytes(110);
  adopted.set_exchange_seconds(0.25F);
  adopted.set_transfer_seconds(1);
  worker.adopted = adopted;
  Post(worker.connection, adopted);
}

void FakeMembers::Evaluate(FakeWorker& worker, uint32_t version, uint64_t begin, uint64_t end) {
  if (begin >= end || !worker.lead() || !behaviour.evaluate) return;
  v1::Evaluated evaluated =
      EvaluationOf(worker, begin, end, (end - begin) * behaviour.accuracy / 100);
  evaluated.set_version(version);
  evaluated.set_loss_sum((end - begin) * 0.5);
  evaluated.set_digest(
      worker.assignment->shards().empty() ? 77 : DigestOf(worker.place().run(), version));
  worker.evaluated = evaluated;
  Post(worker.connection, evaluated);
}

v1::Evaluated FakeMembers::EvaluationOf(const FakeWorker& lead, uint64_t begin, uint64_t end,
                                        uint64_t correct) {
  v1::Evaluated evaluated;
  *evaluated.mutable_place() = lead.place();
  evaluated.set_version(lead.version);
  evaluated.set_begin(begin);
  evaluated.set_end(end);
  evaluated.set_correct(correct);
  evaluated.set_labels(end - begin);
  evaluated.set_seconds(0.5F);
  return evaluated;
}

void FakeMembers::Resend(FakeWorker& worker) {
  const auto resend = [&](const auto& message) {
    if (message.has_value()) Post(worker.connection, *message);
  };
  resend(worker.prepared);
  resend(worker.measured);
  resend(worker.adopted);
  resend(worker.evaluated);
  resend(worker.contributed);
}

v1::Contributed FakeMembers::ContributionOf(const FakeWorker& lead) const {
  v1::Contributed contributed;
  *contributed.mutable_place() = lead.place();
  contributed.set_round(lead.version + 1);
  contributed.set_base_version(lead.version);
  contributed.set_step(*lead.next_step);
  contributed.set_samples(uint64_t{*lead.next_step - lead.step} * 32);
  contributed.set_loss(1);
  if (!lead.assignment->shards().empty()) {
    contributed.set_payload_bytes(1000);
    contributed.set_message_bytes(1010);
  }
  return contributed;
}

void FakeMembers::Contribute(FakeWorker& worker) {
  worker.contributed = ContributionOf(worker);
  for (FakeAggregator& aggregator : aggregators_) {
    const auto found = aggregator.shards.find(worker.place().run());
    if (found == aggregator.shards.end() || found->second.hollow != worker.version) continue;
    for (int rank = 0; rank < worker.assignment->peers_size(); ++rank) {
      found->second.staged.emplace(worker.version + 1, false, worker.place().group(), rank);
    }
  }
  Post(worker.connection, *worker.contributed);
}

bool FakeMembers::Act() {
  for (FakeWorker& worker : workers_) {
    if (!worker.alive || worker.connection == 0 || !worker.assignment.has_value()) continue;
    if (behaviour.prepare && !worker.prepared.has_value() && !worker.start.has_value()) {
      v1::Prepared prepared;
      *prepared.mutable_place() = worker.place();
      prepared.set_train_samples(behaviour.train_samples);
      prepared.set_test_samples(kTestSamples);
      if (behaviour.on_prepared) behaviour.on_prepared(prepared);
      worker.prepared = prepared;
      Post(worker.connection, prepared);
      return true;
    }
    if (worker.pulling.has_value() && CanPull(worker, worker.pulling->version())) {
      LoadDecided(worker);
      return true;
    }
    if (behaviour.train && worker.start.has_value() && worker.lead() &&
        !worker.contributed.has_value() && worker.next_step > 0u && CanStage(worker)) {
      Contribute(worker);
      return true;
    }
  }
  return false;
}

void FakeMembers::Receive(FakeAggregator& aggregator, const v1::CoordinatorMessage& message) {
  aggregator.received.push_back(message);
  if (behaviour.hung.contains(aggregator.name)) return;
  if (message.has_open_run() && behaviour.open) {
    OnOpenRun(aggregator, message.open_run());
  } else if (message.has_fence()) {
    OnFence(aggregator, message.fence());
  } else if (message.has_close_run()) {
    const auto found = aggregator.shards.find(message.close_run().run());
    if (found != aggregator.shards.end()) found->second.closed = true;
  } else if (message.has_delete_run()) {
    OnDeleteRun(aggregator, message.delete_run());
  } else if (message.has_publish()) {
    aggregator.shards.at(message.publish().run()).published = message.publish().round();
  } else if (message.has_report_run()) {
    OnReportRun(aggregator, message.report_run().run());
  } else if (message.has_apply() && behaviour.apply) {
    OnApply(aggregator, message.apply());
  } else if (message.has_copy_shard() && !behaviour.slow_copies.contains(aggregator.name)) {
    OnCopyShard(aggregator, message.copy_shard());
  }
}

void FakeMembers::OnOpenRun(FakeAggregator& aggregator, const v1::OpenRun& open) {
  auto [it, created] = aggregator.shards.try_emplace(open.run());
  FakeAggregator::Shard& shard = it->second;
  if (created && open.version() == 0) {
    shard.digests[0] = 1000 + open.shard();
    made_[{open.run(), open.shard(), 0}] = shard.digests[0];
  }
  if (open.has_hollow() && shard.hollow != open.hollow()) {
    shard.hollow = open.hollow();
    shard.digests.clear();
    shard.staged.clear();
    shard.waiting.reset();
    shard.version = open.hollow();
  }
  shard.open = open;
  shard.shard = open.shard();
  shard.lineage = open.lineage();
  for (const auto& [group, generation] : open.generations()) {
    EXPECT_GE(generation, shard.generations[group]) << "fences must not move back";
    shard.generations[group] = generation;
    const auto key = open.keys().find(group);
    shard.keys[group] = key == open.keys().end() ? "" : key->second;
  }
  v1::RunOpened opened;
  opened.set_run(open.run());
  opened.set_shard(shard.shard);
  opened.set_shards(open.shards());
  opened.set_version(shard.version);
  opened.set_hollow(!shard.digests.contains(shard.version));
  if (!opened.hollow()) opened.set_digest(shard.digests[shard.version]);
  for (const auto& [version, digest] : shard.digests) {
    if (version == shard.version) continue;
    v1::KeptVersion& kept = *opened.add_kept();
    kept.set_version(version);
    kept.set_digest(digest);
  }
  for (const auto& [version, digest] : aggregator.copies[open.run()]) {
    v1::ShardCopy& copy = *opened.add_copies();
    copy.set_shard((shard.shard + open.shards() - 1) % open.shards());
    copy.set_version(version);
    copy.set_digest(digest);
  }
  if (behaviour.open_error_of.empty() || behaviour.open_error_of == aggregator.name) {
    opened.set_error(behaviour.open_error);
  }
  Post(aggregator.connection, opened);
}

void FakeMembers::OnFence(FakeAggregator& aggregator, const v1::Fence& fence) {
  uint32_t& generation = aggregator.shards.at(fence.run()).generations[fence.group()];
  EXPECT_GE(fence.generation(), generation) << "fences must not move back";
  generation = fence.generation();
  aggregator.shards.at(fence.run()).keys[fence.group()] = fence.key();
}

void FakeMembers::OnDeleteRun(FakeAggregator& aggregator, const v1::DeleteRun& order) {
  const auto found = aggregator.shards.find(order.run());
  if (found != aggregator.shards.end() && found->second.lineage == order.lineage()) {
    aggregator.shards.erase(found);
  }
  v1::RunDeleted deleted;
  deleted.set_run(order.run());
  deleted.set_lineage(order.lineage());
  Post(aggregator.connection, deleted);
}

void FakeMembers::OnReportRun(FakeAggregator& aggregator, const std::string& run) {
  v1::RunReport report;
  report.set_run(run);
  if (const auto found = aggregator.shards.find(report.run()); found != aggregator.shards.end()) {
    const FakeAggregator::Shard& shard = found->second;
    *report.mutable_open() = shard.open;
    if (shard.newest.round() > 0) *report.mutable_newest() = shard.newest;
    report.set_closed(shard.closed);
    if (!shard.digests.contains(shard.version)) return Post(aggregator.connection, report);
    v1::ShardState& state = *report.mutable_state();
    state.set_run(report.run());
    state.set_lineage(shard.lineage);
    state.set_shard(shard.shard);
    state.set_version(shard.version);
    state.set_digest(shard.digests.at(shard.version));
  }
  Post(aggregator.connection, report);
}

uint64_t FakeMembers::MakeVersion(const v1::Apply& apply, const FakeAggregator::Shard& shard) {
  uint64_t& made = made_[{apply.run(), shard.shard, apply.round()}];
  if (apply.has_restores()) {
    EXPECT_TRUE(apply.participants().empty());
    made = shard.digests.at(apply.restores());
  } else if (!apply.seed()) {
    made = Mix(made_.at({apply.run(), shard.shard, shard.version}), apply);
  }
  return made + (apply.seed() ? behaviour.seed_error : 0);
}

void FakeMembers::OnApply(FakeAggregator& aggregator, const v1::Apply& apply) {
  FakeAggregator::Shard& shard = aggregator.shards.at(apply.run());
  v1::Applied applied;
  applied.set_run(apply.run());
  applied.set_shard(shard.shard);
  applied.set_round(apply.round());
  applied.set_attempt(apply.attempt());
  MaybeRetract(apply, shard);
  if (apply.round() == shard.version + 1) {
    for (const v1::Participant& participant : apply.participants()) {
      bool whole = true;
      for (uint32_t rank = 0; rank < participant.ranks(); ++rank) {
        whole = whole &&
                shard.staged.contains({apply.round(), apply.seed(), participant.group(), rank});
      }
      if (shard.hollow.has_value() && !whole) applied.add_missing(participant.group());
    }
    if (!applied.missing().empty()) {
      shard.waiting = apply;
      return Post(aggregator.connection, applied);
    }
    const uint64_t digest = MakeVersion(apply, shard);
    if (behaviour.compare_digests && apply.has_digest() && apply.digest() != digest) {
      applied.set_error("the values have another digest");
      return Post(aggregator.connection, applied);
    }
    shard.digests[apply.round()] = digest;
    shard.version = apply.round();
    shard.newest = apply;
    std::erase_if(shard.digests, [&](const auto& version) {
      return version.first + 1 < apply.round() &&
             !absl::c_linear_search(apply.keep(), version.first);
    });
    shard.hollow.reset();
    shard.waiting.reset();
  }
  EXPECT_EQ(apply.round(), shard.version);
  const bool differs = Mix(0, apply) != Mix(0, shard.newest) ||
                       apply.restores() != shard.newest.restores() ||
                       apply.has_restores() != shard.newest.has_restores();
  if (!apply.seed() && differs) {
    applied.set_error("the version was made of other participants");
    applied.set_refusal(v1::REFUSAL_CLOSED_ROUND);
    return Post(aggregator.connection, applied);
  }
  if (!apply.seed() && !apply.has_restores() &&
      made_.contains({apply.run(), shard.shard, apply.round() - 1})) {
    EXPECT_EQ(shard.digests[apply.round()],
              Mix(made_.at({apply.run(), shard.shard, apply.round() - 1}), apply))
        << "the participants of an applied round must not change";
  }
  applied.set_digest(shard.digests[apply.round()]);
  applied.set_variance_between_groups(behaviour.variance_between_groups);
  applied.set_displacement(behaviour.displacement);
  if (behaviour.changes) *applied.mutable_changes() = behaviour.changes(apply);
  if (behaviour.residual) *applied.mutable_residual() = *behaviour.residual;
  Post(aggregator.connection, applied);
}

void FakeMembers::OnCopyShard(FakeAggregator& aggregator, const v1::CopyShard& order) {
  FakeAggregator::Shard& shard = aggregator.shards.at(order.run());
  const auto source =
      std::find_if(aggregators_.begin(), aggregators_.end(), [&](const FakeAggregator& other) {
        return other.alive && other.name == order.aggregator() && other.address == order.address();
      });
  ASSERT_NE(source, aggregators_.end()) << order.ShortDebugString();
  const bool restores = order.shard() == shard.shard;
  // The copy of a lost shard, or the shard itself, which has a copy or moves.
  const FakeAggregator::Shard& original = source->shards[order.run()];
  const std::map<uint32_t, uint64_t>& stored =
      original.shard == order.shard() ? original.digests : source->copies[order.run()];
  ASSERT_TRUE(stored.contains(order.version()) && stored.at(order.version()) == order.digest())
      << order.ShortDebugString();
  if (restores) {
    EXPECT_EQ(shard.hollow, order.version() - 1);
    if (original.shard == order.shard()) shard.newest = original.newest;
    shard.digests[order.version()] = order.digest();
    shard.version = order.version();
    shard.hollow.reset();
    shard.waiting.reset();
    v1::Applied applied;
    applied.set_from_copy(true);
    applied.set_run(order.run());
    applied.set_shard(order.shard());
    applied.set_round(order.version());
    applied.set_digest(order.digest());
    return Post(aggregator.connection, applied);
  }
  std::map<uint32_t, uint64_t>& copies = aggregator.copies[order.run()];
  copies[order.version()] = order.digest();
  while (copies.size() > 2) copies.erase(copies.begin());
  v1::ShardCopied copied;
  copied.set_run(order.run());
  copied.mutable_copy()->set_shard(order.shard());
  copied.mutable_copy()->set_version(order.version());
  copied.mutable_copy()->set_digest(order.digest());
  Post(aggregator.connection, copied);
}

uint64_t FakeMembers::DigestOf(const std::string& run, uint32_t version) const {
  // By shard, because two aggregators may have one that moves.
  std::map<uint32_t, uint64_t> digests;
  for (const FakeAggregator& aggregator : aggregators_) {
    auto it = aggregator.shards.find(run);
    if (it == aggregator.shards.end()) continue;
    auto found = it->second.digests.find(version);
    if (found != it->second.digests.end()) digests[it->second.shard] = found->second;
  }
  uint64_t digest = 0;
  for (const auto& [shard, of_shard] : digests) digest += of_shard;
  return digest;
}

v1::Heartbeat FakeMembers::HeartbeatOf(FakeWorker& worker) {
  v1::Heartbeat heartbeat;
  if (worker.assignment.has_value()) *heartbeat.mutable_place() = worker.place();
  if (worker.assignment.has_value() || worker.hung) heartbeat.set_activity(worker.activity);
  if (!worker.hung) ++worker.progress;
  heartbeat.set_progress(worker.progress);
  return heartbeat;
}

FakeWorker& FakeMembers::Rank(const std::string& run, uint32_t group, uint32_t rank) {
  for (FakeWorker& worker : workers_) {
    if (worker.assignment.has_value() && worker.place().run() == run &&
        worker.place().group() == group && worker.place().rank() == rank) {
      return worker;
    }
  }
  ADD_FAILURE() << "group " << group << " of " << run << " has no rank " << rank;
  return workers_.front();
}

std::string FakeMembers::NewIncarnation() { return absl::StrCat("process-", ++last_incarnation_); }

}  // namespace cadre::testing
