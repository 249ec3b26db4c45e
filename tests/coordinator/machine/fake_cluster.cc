#include "base/protocol.h"
#include "tests/coordinator/machine/fake_cluster.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/store/keys.h"
#include "tests/coordinator/machine/apply_op.h"

namespace cadre::testing {
namespace {

absl::StatusOr<v1::Plan> FakePlan(const v1::RunSpec&, int ranks) {
  v1::Plan plan;
  v1::MeshAxis& axis = *plan.add_mesh();
  axis.set_name("data");
  axis.set_size(static_cast<uint32_t>(ranks));
  return plan;
}

uint64_t Mix(uint64_t digest, const v1::Apply& apply) {
  for (const v1::Participant& in : apply.participants()) {
    digest = RandomBits(digest, RandomStream::kTest, in.generation(), in.samples() + in.group());
  }
  return digest;
}

// Maximum number of iterations of any loop, so that a machine that requests ticks without end fails
// the test.
constexpr int kMaxTurns = 200'000;

// The envelope of one of the messages that members send.
v1::MemberMessage MessageOf(const google::protobuf::Message& body) {
  v1::MemberMessage message;
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->message_type() != body.GetDescriptor()) continue;
    message.GetReflection()->MutableMessage(&message, type.field(i))->CopyFrom(body);
    return message;
  }
  CHECK(body.GetDescriptor() == &type) << body.GetTypeName() << " is not a message of members";
  message.CopyFrom(body);
  return message;
}

}  // namespace

v1::RunSpec MakeSpec(uint32_t groups, uint32_t ranks, uint32_t every_steps, uint32_t steps) {
  v1::RunSpec spec;
  spec.set_name("test");
  spec.set_batch_per_group(32);
  spec.mutable_averaging()->set_every_steps(every_steps);
  spec.mutable_cluster()->set_groups(groups);
  spec.mutable_cluster()->set_ranks_per_group(ranks);
  spec.mutable_stop()->set_steps(steps);
  return spec;
}

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

FakeCluster::FakeCluster(const Adjust& adjust) : now_(absl::FromUnixSeconds(1'000'000)) {
  options_.plan = FakePlan;
  options_.parameter_count = [](const v1::RunSpec&) { return uint64_t{1000}; };
  options_.protocol = kProtocol;
  options_.version = "test";
  if (adjust) adjust(options_);
  heartbeat_at_ = now_ + options_.heartbeat;
  StartMachine();
}

void FakeCluster::StartMachine() {
  machine_ = std::make_unique<Machine>(options_);
  auto actions = machine_->Restore(store_, now_);
  ASSERT_TRUE(actions.ok()) << actions.status();
  Perform(*actions);
}

void FakeCluster::RestartCoordinator() {
  machine_.reset();
  in_flight_.clear();
  searches_.clear();
  crashed_ = false;
  for (FakeWorker& worker : workers_) worker.connection = 0;
  for (FakeAggregator& aggregator : aggregators_) aggregator.connection = 0;
  StartMachine();
  ReconnectAll();
  Deliver();
}

void FakeCluster::ReconnectAll() {
  for (FakeAggregator& aggregator : aggregators_) {
    if (aggregator.alive && aggregator.connection == 0) Connect(aggregator);
  }
  for (FakeWorker& worker : workers_) {
    if (worker.alive && worker.connection == 0) Connect(worker);
  }
}

// ---- Actions

void FakeCluster::CheckTransaction(const std::string& key, const std::string& value) {
  if (key == kMetaKey) {
    v1::MetaRecord meta;
    ASSERT_TRUE(meta.ParseFromString(value));
    EXPECT_GE(meta.generation(), highest_generation_) << "generations must not be reused";
    highest_generation_ = meta.generation();
  }
  if (!absl::StartsWith(key, kCommitPrefix)) return;
  v1::CommitRecord commit;
  ASSERT_TRUE(commit.ParseFromString(value));
  auto it = store_.find(key);
  if (it == store_.end()) return;
  v1::CommitRecord before;
  ASSERT_TRUE(before.ParseFromString(it->second));
  EXPECT_FALSE(before.committed()) << "a committed record must not change: " << key;
  ASSERT_EQ(before.participants_size(), commit.participants_size()) << key;
  for (int i = 0; i < before.participants_size(); ++i) {
    EXPECT_EQ(before.participants(i).SerializeAsString(),
              commit.participants(i).SerializeAsString());
  }
}

void FakeCluster::Perform(const std::vector<Action>& actions) {
  bool kept = false;
  for (const Action& action : actions) {
    const auto* op = std::get_if<Store::Op>(&action);
    if (op == nullptr) continue;
    kept = true;
    if (op->kind == Store::Op::Kind::kPut) CheckTransaction(op->key, op->value);
    ApplyTo(store_, *op);
  }
  if (kept) {
    ++transactions_;
    if (crash_after_ > 0 && --crash_after_ == 0) {
      crash_after_ = -1;
      crashed_ = true;
      return;
    }
  }
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<cadre::Send>(&action)) {
      raw_received_[send->connection].push_back(send->message);
      in_flight_.push_back(*send);
    } else if (const auto* disconnect = std::get_if<Disconnect>(&action)) {
      ended_.insert(disconnect->connection);
    } else if (const auto* replied = std::get_if<Replied>(&action)) {
      last_status = replied->status;
      last_run = replied->run;
      last_run_ended = replied->ended;
      last_members = replied->members;
      last_adopted = replied->adopted;
      if (!trace_requests_.contains(replied->request)) continue;
      EXPECT_EQ(traces.count(replied->request), 0u) << "a trace must be answered once";
      traces[replied->request] = *replied;
    } else if (const auto* search = std::get_if<SearchPlans>(&action)) {
      searches_.push_back(*search);
    }
  }
  if (behaviour.hold_searches || searches_.empty()) return;
  AnswerSearches();
}

void FakeCluster::AnswerSearches() {
  for (const SearchPlans& search : std::exchange(searches_, {})) {
    Do(PlansFound{search.run, search.key, options_.planning->PlansFor(search.query)});
  }
  if (behaviour.hold_searches) Deliver();
}

void FakeCluster::Do(const Event& event) {
  if (crashed_) return;
  Perform(machine_->Handle(event, now_));
}

void FakeCluster::Deliver() {
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    if (crashed_) {
      RestartCoordinator();
      return;
    }
    if (!in_flight_.empty()) {
      const cadre::Send send = std::move(in_flight_.front());
      in_flight_.pop_front();
      for (FakeWorker& worker : workers_) {
        if (worker.connection == send.connection) Receive(worker, send.message);
      }
      for (FakeAggregator& aggregator : aggregators_) {
        if (aggregator.connection == send.connection) Receive(aggregator, send.message);
      }
    } else if (!Act()) {
      return;
    }
  }
  FAIL() << "the members exchange messages without end";
}

// ---- Users

std::string FakeCluster::Submit(const v1::RunSpec& spec, bool join_existing, bool join_ended) {
  last_run.clear();
  last_status = CheckSpec(options_, spec);
  if (!last_status.ok()) return "";
  Do(SubmitRun{.request = ++last_request_,
               .spec = spec,
               .lineage_seed = 7,
               .join_existing = join_existing,
               .join_ended = join_ended});
  const std::string run = last_run;
  Deliver();
  return run;
}

std::vector<std::string> FakeCluster::Cordon(const std::string& member, bool undo, bool drain,
                                             double drain_seconds) {
  last_members.clear();
  Do(CordonMembers{.request = ++last_request_,
                   .member = member,
                   .undo = undo,
                   .drain = drain,
                   .drain_seconds = drain_seconds});
  Deliver();
  return last_members;
}

void FakeCluster::Scale(const std::string& run, uint32_t groups) {
  Do(ScaleRun{.request = ++last_request_, .run = run, .groups = groups});
  Deliver();
}

void FakeCluster::StopRun(const std::string& run) {
  Do(cadre::StopRun{.request = ++last_request_, .run = run, .reason = "enough"});
  Deliver();
}

void FakeCluster::DeleteRun(const std::string& run) {
  Do(cadre::DeleteRun{.request = ++last_request_, .run = run});
  Deliver();
}

void FakeCluster::ResumeRun(const std::string& run) {
  Do(cadre::ResumeRun{.request = ++last_request_, .run = run});
  Deliver();
}

v1::AdoptReply FakeCluster::Adopt(const std::string& run) {
  last_adopted.Clear();
  Do(AdoptRuns{.request = ++last_request_, .run = run});
  Deliver();
  return last_adopted;
}

RequestId FakeCluster::TraceGroup(const std::string& run, uint32_t group, uint32_t steps) {
  const RequestId request = ++last_request_;
  trace_requests_.insert(request);
  Do(cadre::TraceGroup{.request = request, .run = run, .group = group, .steps = steps});
  Deliver();
  return request;
}

void FakeCluster::CancelTrace(RequestId request) {
  Do(cadre::CancelTrace{request});
  Deliver();
}

// ---- Members

ConnectionId FakeCluster::Open() {
  Do(StreamOpened{++last_connection_});
  return last_connection_;
}

void FakeCluster::Post(ConnectionId connection, const google::protobuf::Message& body) {
  Do(MessageReceived{connection, MessageOf(body)});
}

void FakeCluster::SendFrom(ConnectionId connection, const google::protobuf::Message& body) {
  Post(connection, body);
  Deliver();
}

std::string FakeCluster::NewIncarnation() { return absl::StrCat("process-", ++last_incarnation_); }

std::vector<v1::CoordinatorMessage> FakeCluster::SentTo(ConnectionId connection) const {
  auto it = raw_received_.find(connection);
  return it == raw_received_.end() ? std::vector<v1::CoordinatorMessage>() : it->second;
}

FakeWorker& FakeCluster::AddWorker(const std::string& name, const std::string& host,
                                   const std::string& device,
                                   std::vector<v1::RunSpec::Precision> precisions) {
  FakeWorker& worker = workers_.emplace_back();
  worker.name = name;
  worker.host = host;
  worker.device = device;
  worker.precisions = std::move(precisions);
  if (absl::StartsWith(device, "cuda")) worker.precisions = {v1::RunSpec::TF32, v1::RunSpec::BF16};
  worker.incarnation = NewIncarnation();
  Connect(worker);
  return worker;
}

FakeWorker& FakeCluster::AddRank(const std::string& program, const std::string& run, uint32_t ranks,
                                 uint32_t rank) {
  FakeWorker& worker = workers_.emplace_back();
  worker.name = absl::StrCat(program, "-", workers_.size());
  worker.device = "program";
  worker.incarnation = NewIncarnation();
  v1::Reservation& reservation = worker.reservation.emplace();
  reservation.set_run(run);
  reservation.set_program(program);
  reservation.set_ranks(ranks);
  reservation.set_rank(rank);
  Connect(worker);
  return worker;
}

void FakeCluster::AddWorkers(int count) {
  for (int i = 0; i < count; ++i) AddWorker(absl::StrCat("w", workers_.size()));
}

FakeAggregator& FakeCluster::AddAggregator(const std::string& name) {
  FakeAggregator& aggregator = aggregators_.emplace_back();
  aggregator.name = name;
  aggregator.incarnation = NewIncarnation();
  aggregator.address = absl::StrCat(name, ":1");
  Connect(aggregator);
  return aggregator;
}

v1::Hello FakeCluster::WorkerHello(const FakeWorker& worker) const {
  v1::Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(worker.name);
  hello.set_incarnation(worker.incarnation);
  hello.set_address(absl::StrCat(worker.name, ":1"));
  hello.set_host(worker.host);
  hello.set_device(worker.device);
  hello.set_device_kind(absl::StartsWith(worker.device, "cuda") ? v1::Cluster::CUDA
                                                                : v1::Cluster::CPU);
  hello.mutable_precisions()->Add(worker.precisions.begin(), worker.precisions.end());
  hello.set_cores(worker.cores);
  hello.set_memory_bytes(worker.memory_bytes);
  hello.set_member_id(worker.member_id);
  if (worker.reservation.has_value()) *hello.mutable_reservation() = *worker.reservation;
  if (worker.assignment.has_value()) *hello.mutable_place() = worker.place();
  return hello;
}

void FakeCluster::Connect(FakeWorker& worker) {
  worker.alive = true;
  worker.connection = Open();
  Send(worker, WorkerHello(worker));
}

void FakeCluster::Connect(FakeAggregator& aggregator) {
  aggregator.alive = true;
  aggregator.connection = Open();
  v1::Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_role(v1::ROLE_AGGREGATOR);
  hello.set_name(aggregator.name);
  hello.set_incarnation(aggregator.incarnation);
  hello.set_address(aggregator.address);
  for (const auto& [run, held] : aggregator.shards) {
    if (!held.digests.contains(held.version)) continue;
    v1::ShardState& shard = *hello.add_shards();
    shard.set_run(run);
    shard.set_lineage(held.lineage);
    shard.set_shard(held.shard);
    shard.set_version(held.version);
    shard.set_digest(held.digests.at(held.version));
    shard.set_closed(held.closed);
    for (const auto& [group, generation] : held.generations) {
      hello.set_generation(std::max(hello.generation(), generation));
    }
  }
  Send(aggregator, hello);
}

void FakeCluster::Restart(FakeWorker& worker) {
  worker.incarnation = NewIncarnation();
  worker.member_id.clear();
  worker.received.clear();
  DropPlace(worker);
  Connect(worker);
}

void FakeCluster::Restart(FakeAggregator& aggregator) {
  aggregator.incarnation = NewIncarnation();
  aggregator.received.clear();
  Connect(aggregator);
}

void FakeCluster::Wipe(FakeAggregator& aggregator) {
  Kill(aggregator);
  aggregator.shards.clear();
  aggregator.wiped = true;
  Restart(aggregator);
}

void FakeCluster::LoseStore() {
  store_.clear();
  highest_generation_ = 0;
  RestartCoordinator();
}

void FakeCluster::RollBackStore(const std::map<std::string, std::string>& copy) {
  store_ = copy;
  highest_generation_ = 0;
  RestartCoordinator();
}

// ---- Reactions of members

void FakeCluster::DropPlace(FakeWorker& worker) {
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

void FakeCluster::Receive(FakeWorker& worker, const v1::CoordinatorMessage& message) {
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
      if (worker.start.has_value() || !worker.assignment.has_value()) break;
      worker.prepared.reset();
      worker.start = message.start();
      worker.version = message.start().version();
      worker.step = message.start().step();
      worker.next_step = message.start().next_step();
      if (worker.lead() && !worker.assignment->shards().empty() && behaviour.load) {
        ReportLoaded(worker);
      }
      if (!worker.assignment.has_value()) break;
      Evaluate(worker, worker.version, message.start().evaluate_begin(),
               message.start().evaluate_end());
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

void FakeCluster::OnDecision(FakeWorker& worker, const v1::Decision& decision) {
  const bool answers =
      worker.contributed.has_value() && worker.contributed->round() == decision.round();
  const bool at_end = worker.next_step == 0u && decision.next_step() == 0;
  if (!worker.start.has_value() || (!answers && !at_end)) return;
  worker.pulling = decision;
  if (!decision.adopt() || CanPull(worker, decision.version())) Adopt(worker);
}

bool FakeCluster::CanPull(const FakeWorker& worker, uint32_t version) const {
  if (behaviour.slow_pulls.contains(worker.place().group())) return false;
  const auto has = std::count_if(
      aggregators_.begin(), aggregators_.end(), [&](const FakeAggregator& aggregator) {
        const auto found = aggregator.shards.find(worker.place().run());
        return found != aggregator.shards.end() && found->second.digests.contains(version);
      });
  return has >= worker.assignment->shards_size();
}

bool FakeCluster::CanStage(const FakeWorker& worker) const {
  return std::all_of(
      aggregators_.begin(), aggregators_.end(), [&](const FakeAggregator& aggregator) {
        const auto found = aggregator.shards.find(worker.place().run());
        if (found == aggregator.shards.end()) return !aggregator.wiped;
        return !found->second.hollow.has_value() || found->second.hollow == worker.version;
      });
}

// The values of a group are those of its version until it contributes, and its contribution until
// it has pulled the next version.
void FakeCluster::OnRestage(FakeWorker& worker, const v1::Restage& restage) {
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

void FakeCluster::Adopt(FakeWorker& worker) {
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

void FakeCluster::ReportLoaded(FakeWorker& worker) {
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

void FakeCluster::Evaluate(FakeWorker& worker, uint32_t version, uint64_t begin, uint64_t end) {
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

v1::Evaluated FakeCluster::EvaluationOf(const FakeWorker& lead, uint64_t begin, uint64_t end,
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

void FakeCluster::Resend(FakeWorker& worker) {
  const auto resend = [&](const auto& message) {
    if (message.has_value()) Post(worker.connection, *message);
  };
  resend(worker.prepared);
  resend(worker.measured);
  resend(worker.adopted);
  resend(worker.evaluated);
  resend(worker.contributed);
}

void FakeCluster::Fail(const FakeWorker& worker, const std::string& reason, v1::FailureCause cause,
                       const std::vector<uint32_t>& suspects) {
  v1::GroupFailed failed;
  *failed.mutable_place() = worker.place();
  failed.set_reason(reason);
  failed.set_cause(cause);
  failed.mutable_suspects()->Add(suspects.begin(), suspects.end());
  Send(worker, failed);
}

void FakeCluster::Measure(FakeWorker& lead, double step_seconds) {
  v1::Measured measured;
  *measured.mutable_place() = lead.place();
  measured.mutable_times()->set_step(step_seconds);
  measured.mutable_times()->set_compute(step_seconds / 2);
  measured.mutable_times()->set_exposed(step_seconds / 2);
  measured.mutable_times()->set_collectives(step_seconds);
  measured.set_update_seconds(1e-9);
  v1::LayerTime& layer = *measured.mutable_layers()->add_time();
  layer.set_layer("fc1");
  layer.set_samples(16);
  layer.set_forward(step_seconds / 6);
  layer.set_backward(step_seconds / 3);
  lead.measured = measured;
  Send(lead, measured);
}

void FakeCluster::ContributeOnce(FakeWorker& lead) {
  Contribute(lead);
  Deliver();
}

v1::Contributed FakeCluster::ContributionOf(const FakeWorker& lead) const {
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

void FakeCluster::Contribute(FakeWorker& worker) {
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

bool FakeCluster::Act() {
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
      Adopt(worker);
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

void FakeCluster::Receive(FakeAggregator& aggregator, const v1::CoordinatorMessage& message) {
  aggregator.received.push_back(message);
  if (message.has_open_run() && !behaviour.open) return;
  if (message.has_open_run()) {
    const v1::OpenRun& open = message.open_run();
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
    opened.set_error(behaviour.open_error);
    Post(aggregator.connection, opened);
  } else if (message.has_fence()) {
    const v1::Fence& fence = message.fence();
    uint32_t& generation = aggregator.shards.at(fence.run()).generations[fence.group()];
    EXPECT_GE(fence.generation(), generation) << "fences must not move back";
    generation = fence.generation();
    aggregator.shards.at(fence.run()).keys[fence.group()] = fence.key();
  } else if (message.has_close_run()) {
    const auto found = aggregator.shards.find(message.close_run().run());
    if (found != aggregator.shards.end()) found->second.closed = true;
  } else if (message.has_delete_run()) {
    const v1::DeleteRun& order = message.delete_run();
    const auto found = aggregator.shards.find(order.run());
    if (found != aggregator.shards.end() && found->second.lineage == order.lineage()) {
      aggregator.shards.erase(found);
    }
    v1::RunDeleted deleted;
    deleted.set_run(order.run());
    deleted.set_lineage(order.lineage());
    Post(aggregator.connection, deleted);
  } else if (message.has_report_run()) {
    v1::RunReport report;
    report.set_run(message.report_run().run());
    if (const auto found = aggregator.shards.find(report.run()); found != aggregator.shards.end()) {
      const FakeAggregator::Shard& shard = found->second;
      *report.mutable_open() = shard.open;
      if (shard.newest.round() > 0) *report.mutable_newest() = shard.newest;
      report.set_closed(shard.closed);
      v1::ShardState& state = *report.mutable_state();
      state.set_run(report.run());
      state.set_lineage(shard.lineage);
      state.set_shard(shard.shard);
      state.set_version(shard.version);
      state.set_digest(shard.digests.at(shard.version));
    }
    Post(aggregator.connection, report);
  } else if (message.has_apply() && behaviour.apply) {
    OnApply(aggregator, message.apply());
  }
}

void FakeCluster::OnApply(FakeAggregator& aggregator, const v1::Apply& apply) {
  FakeAggregator::Shard& shard = aggregator.shards.at(apply.run());
  v1::Applied applied;
  applied.set_run(apply.run());
  applied.set_shard(shard.shard);
  applied.set_round(apply.round());
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
    uint64_t& made = made_[{apply.run(), shard.shard, apply.round()}];
    if (!apply.seed()) {
      made = Mix(made_.at({apply.run(), shard.shard, shard.version}), apply);
    }
    shard.digests[apply.round()] = made + (apply.seed() ? behaviour.seed_error : 0);
    shard.version = apply.round();
    shard.newest = apply;
    shard.hollow.reset();
    shard.waiting.reset();
  }
  EXPECT_EQ(apply.round(), shard.version);
  if (!apply.seed() && Mix(0, apply) != Mix(0, shard.newest)) {
    applied.set_error("the version was made of other participants");
    applied.set_refusal(v1::REFUSAL_CLOSED_ROUND);
    return Post(aggregator.connection, applied);
  }
  if (!apply.seed() && made_.contains({apply.run(), shard.shard, apply.round() - 1})) {
    EXPECT_EQ(shard.digests[apply.round()],
              Mix(made_.at({apply.run(), shard.shard, apply.round() - 1}), apply))
        << "the participants of an applied round must not change";
  }
  applied.set_digest(shard.digests[apply.round()]);
  applied.set_variance_between_groups(behaviour.variance_between_groups);
  applied.set_displacement(behaviour.displacement);
  Post(aggregator.connection, applied);
}

uint64_t FakeCluster::DigestOf(const std::string& run, uint32_t version) const {
  uint64_t digest = 0;
  for (const FakeAggregator& aggregator : aggregators_) {
    auto it = aggregator.shards.find(run);
    if (it == aggregator.shards.end()) continue;
    auto found = it->second.digests.find(version);
    if (found != it->second.digests.end()) digest += found->second;
  }
  return digest;
}

// ---- Time

void FakeCluster::Run(absl::Duration duration) {
  const absl::Time end = now_ + duration;
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    const absl::Time next = std::min({machine_->NextDeadline(), heartbeat_at_, end});
    now_ = std::max(now_, next);
    if (now_ >= heartbeat_at_) {
      heartbeat_at_ = now_ + options_.heartbeat;
      ReconnectAll();
      for (FakeWorker& worker : workers_) {
        if (worker.connection != 0) Post(worker.connection, HeartbeatOf(worker));
      }
      for (const FakeAggregator& aggregator : aggregators_) {
        if (aggregator.connection != 0) Post(aggregator.connection, v1::Heartbeat());
      }
      Deliver();
    }
    if (now_ >= machine_->NextDeadline()) Do(Tick{});
    Deliver();
    if (now_ >= end && machine_->NextDeadline() > now_) return;
  }
  FAIL() << "the machine requests ticks without end";
}

v1::Heartbeat FakeCluster::HeartbeatOf(FakeWorker& worker) {
  v1::Heartbeat heartbeat;
  if (worker.assignment.has_value()) *heartbeat.mutable_place() = worker.place();
  if (worker.assignment.has_value() || worker.hung) heartbeat.set_activity(worker.activity);
  if (!worker.hung) ++worker.progress;
  heartbeat.set_progress(worker.progress);
  return heartbeat;
}

bool FakeCluster::RunUntil(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time end = now_ + limit;
  while (!condition() && now_ < end) Run(absl::Milliseconds(500));
  return condition();
}

// ---- The coordinator

v1::RunStatus FakeCluster::RunStatus(const std::string& run) {
  if (machine_->Revisions(run).empty()) {
    ADD_FAILURE() << "no such run: " << run;
    return v1::RunStatus();
  }
  return machine_->Update(run, now_).run();
}

bool FakeCluster::Ended(const std::string& run) {
  return machine_->Revisions(run).empty() || !IsLive(RunStatus(run).state());
}

v1::GroupStatus FakeCluster::Group(const std::string& run, uint32_t group) {
  const v1::StatusReply reply = machine_->Status(now_, run);
  for (const v1::GroupStatus& status : reply.groups()) {
    if (status.group() == group) return status;
  }
  return v1::GroupStatus();
}

uint64_t FakeCluster::Counter(const std::string& name) {
  const v1::StatusReply reply = Status();
  auto it = reply.counters().find(name);
  return it == reply.counters().end() ? 0 : it->second;
}

std::optional<v1::CommitRecord> FakeCluster::Commit(const std::string& run, uint32_t round) const {
  auto it = store_.find(CommitKey(run, round));
  if (it == store_.end()) return std::nullopt;
  v1::CommitRecord commit;
  EXPECT_TRUE(commit.ParseFromString(it->second));
  return commit;
}

FakeWorker& FakeCluster::Rank(const std::string& run, uint32_t group, uint32_t rank) {
  for (FakeWorker& worker : workers_) {
    if (worker.assignment.has_value() && worker.place().run() == run &&
        worker.place().group() == group && worker.place().rank() == rank) {
      return worker;
    }
  }
  ADD_FAILURE() << "group " << group << " of " << run << " has no rank " << rank;
  return workers_.front();
}

}  // namespace cadre::testing
