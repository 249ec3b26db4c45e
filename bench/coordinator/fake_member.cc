#include "bench/coordinator/fake_member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "base/status.h"

namespace cadre {
namespace {

// So many that no epoch ends during a measurement, and thus no evaluation is due.
constexpr uint64_t kTrainSamples = uint64_t{1} << 50;
constexpr uint64_t kTestSamples = 1024;

// Differs between shards and versions; digests of shards add up.
uint64_t DigestOf(uint32_t shard, uint32_t version) {
  return (uint64_t{shard} + 1) << 32 | version;
}

}  // namespace

FakeMember::FakeMember(v1::Role role, int number, std::string host)
    : role_(role),
      name_(absl::StrCat(role == v1::ROLE_WORKER ? "worker-" : "aggregator-", number)),
      host_(std::move(host)) {}

void FakeMember::Restart() {
  ++incarnation_;
  heartbeats_ = 0;
  place_.Clear();
  next_step_ = 0;
}

v1::MemberMessage FakeMember::Hello() const {
  v1::MemberMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.set_role(role_);
  hello.set_name(name_);
  hello.set_incarnation(absl::StrCat(name_, "/", incarnation_));
  hello.set_address(absl::StrCat(host_, ":7100"));
  hello.set_host(host_);
  hello.set_device("fake processor, 1 thread");
  hello.set_device_kind(v1::Cluster::CPU);
  hello.set_cores(8);
  hello.set_memory_bytes(uint64_t{16} << 30);
  return message;
}

v1::MemberMessage FakeMember::Heartbeat() {
  v1::MemberMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  (*heartbeat.mutable_counters())["heartbeats"] = ++heartbeats_;
  if (place_.generation() == 0) return message;
  *heartbeat.mutable_place() = place_;
  heartbeat.set_activity(next_step_ > 0 ? v1::ACTIVITY_TRAINING : v1::ACTIVITY_WAITING);
  heartbeat.set_progress(heartbeats_);
  return message;
}

std::vector<v1::MemberMessage> FakeMember::Handle(const v1::CoordinatorMessage& message) {
  v1::MemberMessage answer;
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kWelcome:
      heartbeat_ms_ = message.welcome().heartbeat_ms();
      return {};
    case v1::CoordinatorMessage::kAssignment:
      OnAssignment(message.assignment(), answer);
      return {std::move(answer)};
    case v1::CoordinatorMessage::kStart:
      return OnStart(message.start());
    case v1::CoordinatorMessage::kRelease:
      if (!SamePlace(message.release().place(), place_)) return {};
      place_.Clear();
      next_step_ = 0;
      return {};
    case v1::CoordinatorMessage::kDecision:
      if (!OnDecision(message.decision(), answer)) return {};
      return {std::move(answer)};
    case v1::CoordinatorMessage::kOpenRun:
      return {OnOpenRun(message.open_run())};
    case v1::CoordinatorMessage::kApply:
      return {OnApply(message.apply())};
    default:
      return {};
  }
}

void FakeMember::OnAssignment(const v1::Assignment& assignment, v1::MemberMessage& answer) {
  place_ = assignment.place();
  next_step_ = 0;
  batch_ = assignment.spec().batch_per_group();
  v1::Prepared& prepared = *answer.mutable_prepared();
  *prepared.mutable_place() = place_;
  prepared.set_train_samples(kTrainSamples);
  prepared.set_test_samples(kTestSamples);
  if (place_.rank() == 0) *prepared.mutable_plan() = assignment.plan();
}

std::vector<v1::MemberMessage> FakeMember::OnStart(const v1::Start& start) {
  if (!SamePlace(start.place(), place_)) return {};
  version_ = start.version();
  step_ = start.step();
  next_step_ = start.next_step();
  if (place_.rank() != 0) return {};
  return {Adopted(start.digest())};
}

v1::MemberMessage FakeMember::Adopted(uint64_t digest) const {
  v1::MemberMessage message;
  v1::Adopted& adopted = *message.mutable_adopted();
  *adopted.mutable_place() = place_;
  adopted.set_version(version_);
  adopted.set_digest(digest);
  adopted.set_payload_bytes(1000);
  adopted.set_message_bytes(1100);
  return message;
}

// Returns whether the group adopts a version.
bool FakeMember::OnDecision(const v1::Decision& decision, v1::MemberMessage& answer) {
  if (!SamePlace(decision.place(), place_)) return false;
  step_ = decision.step();
  next_step_ = decision.next_step();
  included_ += decision.included() ? 1 : 0;
  if (!decision.adopt()) return false;
  version_ = decision.version();
  answer = Adopted(decision.digest());
  return true;
}

v1::MemberMessage FakeMember::Progress() const {
  v1::MemberMessage message;
  v1::Progress& progress = *message.mutable_progress();
  *progress.mutable_place() = place_;
  progress.set_step(step_ + 1);
  progress.set_loss(1);
  progress.set_samples_per_second(1000);
  progress.set_rate(0.1F);
  progress.set_step_seconds(0.1F);
  progress.set_exposed_seconds(0.01F);
  return message;
}

v1::MemberMessage FakeMember::Contributed() {
  v1::MemberMessage message;
  v1::Contributed& contributed = *message.mutable_contributed();
  *contributed.mutable_place() = place_;
  contributed.set_round(version_ + 1);
  contributed.set_base_version(version_);
  contributed.set_step(next_step_);
  contributed.set_samples(uint64_t{next_step_ - step_} * batch_);
  contributed.set_loss(1);
  contributed.set_payload_bytes(1000);
  contributed.set_message_bytes(1100);
  contributed.set_train_seconds(1);
  next_step_ = 0;
  return message;
}

v1::MemberMessage FakeMember::OnOpenRun(const v1::OpenRun& open) {
  const uint32_t version = versions_.try_emplace(open.run(), 0).first->second;
  v1::MemberMessage message;
  v1::RunOpened& opened = *message.mutable_run_opened();
  opened.set_run(open.run());
  opened.set_shard(open.shard());
  opened.set_shards(open.shards());
  opened.set_version(version);
  opened.set_digest(DigestOf(open.shard(), version));
  return message;
}

v1::MemberMessage FakeMember::OnApply(const v1::Apply& apply) {
  uint32_t& version = versions_[apply.run()];
  version = std::max(version, apply.round());
  v1::MemberMessage message;
  v1::Applied& applied = *message.mutable_applied();
  applied.set_run(apply.run());
  applied.set_shard(apply.shard());
  applied.set_round(apply.round());
  applied.set_attempt(apply.attempt());
  applied.set_digest(DigestOf(apply.shard(), apply.round()));
  applied.set_variance_between_groups(1);
  applied.set_displacement(1);
  return message;
}

}  // namespace cadre
