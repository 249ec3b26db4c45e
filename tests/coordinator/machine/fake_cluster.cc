#include "tests/coordinator/machine/fake_cluster.h"

#include <glog/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/protocol.h"

namespace cadre::testing {
namespace {

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

v1::RunSpec OpaqueSpec(uint32_t groups) {
  v1::RunSpec spec = MakeSpec(groups, 1, 5, 20);
  v1::OpaqueParameter& parameter = *spec.mutable_model()->mutable_opaque()->add_parameter();
  parameter.set_name("weight");
  parameter.add_shape(3);
  return spec;
}

void FakeCluster::RestartCoordinator() {
  for (FakeWorker& worker : workers()) worker.connection = 0;
  for (FakeAggregator& aggregator : aggregators()) aggregator.connection = 0;
  StartMachine();
  ReconnectAll();
  Deliver();
}

void FakeCluster::ReconnectAll() {
  for (FakeAggregator& aggregator : aggregators()) {
    if (aggregator.alive && aggregator.connection == 0) Connect(aggregator);
  }
  for (FakeWorker& worker : workers()) {
    if (worker.alive && worker.connection == 0) Connect(worker);
  }
}

void FakeCluster::Deliver() {
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    if (crashed()) return RestartCoordinator();
    if (const std::optional<cadre::Send> send = TakeSent()) {
      for (FakeWorker& worker : workers()) {
        if (worker.connection == send->connection) Receive(worker, send->message);
      }
      for (FakeAggregator& aggregator : aggregators()) {
        if (aggregator.connection == send->connection) Receive(aggregator, send->message);
      }
    } else if (!Act()) {
      return;
    }
  }
  FAIL() << "the members exchange messages without end";
}

// ---- Members

void FakeCluster::Post(ConnectionId connection, const google::protobuf::Message& body) {
  Do(MessageReceived{connection, MessageOf(body)});
}

void FakeCluster::SendFrom(ConnectionId connection, const google::protobuf::Message& body) {
  Post(connection, body);
  Deliver();
}

FakeWorker& FakeCluster::AddWorker(const std::string& name, const std::string& host,
                                   const std::string& device,
                                   std::vector<v1::RunSpec::Precision> precisions) {
  FakeWorker& worker = workers().emplace_back();
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
  FakeWorker& worker = workers().emplace_back();
  worker.name = absl::StrCat(program, "-", workers().size());
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
  for (int i = 0; i < count; ++i) AddWorker(absl::StrCat("w", workers().size()));
}

FakeAggregator& FakeCluster::AddAggregator(const std::string& name) {
  FakeAggregator& aggregator = aggregators().emplace_back();
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
    shard.set_shards(held.open.shards());
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
  aggregator.copies.clear();
  aggregator.wiped = true;
  Restart(aggregator);
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
  // The coordinator ignores times that cannot have passed.
  Run(absl::Seconds(std::max(0.0, step_seconds - 1)));
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

// ---- Time

void FakeCluster::Run(absl::Duration duration) {
  const absl::Time end = now() + duration;
  for (int turn = 0; turn < kMaxTurns; ++turn) {
    const absl::Time next = std::min({machine().NextDeadline(), heartbeat_at_, end});
    AdvanceTo(next);
    if (now() >= heartbeat_at_) {
      heartbeat_at_ = now() + heartbeat();
      ReconnectAll();
      for (FakeWorker& worker : workers()) {
        if (worker.connection != 0) Post(worker.connection, HeartbeatOf(worker));
      }
      for (const FakeAggregator& aggregator : aggregators()) {
        if (aggregator.connection == 0) continue;
        v1::Heartbeat heartbeat;
        heartbeat.mutable_counters()->insert(aggregator.counters.begin(),
                                             aggregator.counters.end());
        Post(aggregator.connection, heartbeat);
      }
      Deliver();
    }
    if (now() >= machine().NextDeadline()) Do(Tick{});
    Deliver();
    if (now() >= end && machine().NextDeadline() > now()) return;
  }
  FAIL() << "the machine requests ticks without end";
}

bool FakeCluster::RunUntil(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time end = now() + limit;
  while (!condition() && now() < end) Run(absl::Milliseconds(500));
  return condition();
}

}  // namespace cadre::testing
