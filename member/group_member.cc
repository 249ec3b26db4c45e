// The shell around AssignmentMachine: it turns messages, connections and outcomes of training into
// events, and actions into sessions, cancellations and messages.
//
// At most two sessions exist (session_slots.h). All events pass through mutex_, so that
// the machine sees them in one order and its messages are sent in that order.
#include "member/group_member.h"

#include <malloc.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/file_limit.h"
#include "base/identity.h"
#include "base/protocol.h"
#include "base/rpc/certificate_metrics.h"
#include "base/status.h"
#include "base/thread_limit.h"
#include "comm/transport/connect_group.h"
#include "glog/logging.h"
#include "proto/enum_text.h"

namespace cadre {
namespace {

// Maximum time in which a live peer sends nothing, such as the exchange of a peer with a slow link.
// Longer than any peer may wait for an aggregator that is away (--aggregator-patience).
// The death of a peer is detected immediately, and the coordinator ends the generation of a peer
// that makes no progress, both without this timeout.
constexpr absl::Duration kPeerTimeout = absl::Hours(25);

std::string RankSlotName(const v1::RankSlot& rank_slot) {
  return absl::StrCat(rank_slot.run(), ", group ", rank_slot.group(), ", generation ",
                      rank_slot.generation(), ", rank ", rank_slot.rank());
}

absl::StatusOr<SecretKey> KeyOf(const v1::Assignment& assignment) {
  if (const auto key = ParseSecretKey(assignment.key())) return *key;
  return absl::InvalidArgumentError(
      absl::StrCat("the assignment has a key of ", assignment.key().size(), " bytes"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupMember>> GroupMember::Start(const Options& options) {
  CADRE_RETURN_IF_ERROR(ReserveDescriptors(kMemberDescriptors));
  CADRE_RETURN_IF_ERROR(ReserveThreads(kMemberThreads));
  std::unique_ptr<GroupMember> member(new GroupMember(options));
  CADRE_ASSIGN_OR_RETURN(member->listener_, TcpListener::Listen({.address = options.listen,
                                                                 .counters = &member->counters_}));
  CADRE_ASSIGN_OR_RETURN(member->trainer_, options.make_trainer());
  member->runner_ = std::thread([m = member.get()] { m->Run(); });
  CADRE_RETURN_IF_ERROR(member->Join());
  return member;
}

GroupMember::GroupMember(const Options& options)
    : options_(options),
      incarnation_(NewIdentity()),
      runtime_(options.credentials, options.coding_threads) {}

// The membership client stops first, so that no message arrives for a session that is being
// destroyed.
GroupMember::~GroupMember() {
  const absl::Status end = this->end();
  const std::string reason = end.ok() ? stop_reason_ : std::string(end.message());
  if (membership_ != nullptr) membership_->Stop(reason, finished_ && end.ok());
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    client_ = nullptr;
    if (sessions_.current() != nullptr) sessions_.current()->Cancel(reason);
  }
  if (runner_.joinable()) runner_.join();
}

bool GroupMember::Drain(absl::Duration within) {
  absl::MutexLock lock(&mutex_);
  if (!machine_.started() || sessions_.current() == nullptr) return false;
  leaves_at_ = std::min(leaves_at_.value_or(absl::InfiniteFuture()), steady_.Now() + within);
  sessions_.current()->Drain(within);
  return true;
}

std::optional<absl::Duration> GroupMember::leaves_within() const {
  absl::MutexLock lock(&mutex_);
  if (!leaves_at_.has_value()) return std::nullopt;
  return *leaves_at_ - steady_.Now();
}

bool GroupMember::has_rank() const {
  absl::MutexLock lock(&mutex_);
  return machine_.rank_slot().has_value();
}

absl::Status GroupMember::Ready() {
  CADRE_RETURN_IF_ERROR(end());
  absl::MutexLock lock(&mutex_);
  return client_ == nullptr ? absl::UnavailableError("the coordinator is not connected")
                            : client_->Ready();
}

void GroupMember::Collect(Metrics& metrics) {
  metrics.AddCounters(counters_.Snapshot());
  metrics.Gauge("cadre_connected", "Whether the coordinator is connected.", connected() ? 1 : 0);
  metrics.Gauge("cadre_worker_has_rank", "Whether the worker has a rank of a group.",
                has_rank() ? 1 : 0);
  AddCertificate(options_.credentials, metrics);
}

std::optional<bool> GroupMember::run_done() const {
  absl::MutexLock lock(&mutex_);
  return run_done_;
}

absl::Status GroupMember::Join() {
  MembershipClient::Options client;
  client.coordinator = options_.coordinator;
  client.credentials = options_.credentials;
  client.dial_timeout = options_.dial_timeout;
  client.seed = NewSeed();
  client.hello = [this] { return MakeHello(); };
  client.on_message = [this](const v1::CoordinatorMessage& message) {
    OnMessage(message);
    return true;
  };
  client.on_connection = [this](bool connected) { OnConnection(connected); };
  client.on_refused = [this](const absl::Status& reason) {
    {
      absl::MutexLock lock(&mutex_);
      end_ = reason;
    }
    if (options_.ended) options_.ended();
  };
  client.heartbeat = [this] { return NextHeartbeat(); };
  CADRE_ASSIGN_OR_RETURN(membership_, MembershipClient::Start(std::move(client)));
  absl::MutexLock lock(&mutex_);
  client_ = membership_.get();
  // Answers to an assignment that arrived before client_ was set could not be sent until now.
  Do(machine_.Connected());
  return absl::OkStatus();
}

// Sent at the start and after every reconnect. It names the current rank slot, so that the
// coordinator can let the worker keep it.
v1::Hello GroupMember::MakeHello() {
  v1::Hello hello;
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(options_.name);
  hello.set_version(options_.version);
  hello.set_incarnation(incarnation_);
  hello.set_address(options_.advertise.empty() ? listener_->address() : options_.advertise);
  hello.set_host(HostName());
  hello.set_cores(options_.host_cores);
  trainer_->Describe(hello);
  absl::MutexLock lock(&mutex_);
  if (machine_.rank_slot()) *hello.mutable_place() = *machine_.rank_slot();
  return hello;
}

// A new session's place may be sent with the activity of the previous one, which the training
// thread has not left yet.
v1::Heartbeat GroupMember::NextHeartbeat() {
  v1::Heartbeat heartbeat = MakeHeartbeat(counters_);
  absl::MutexLock lock(&mutex_);
  // The activity is sent without a rank slot, too: after a release the coordinator waits until the
  // training thread has left the generation.
  if (machine_.rank_slot()) *heartbeat.mutable_place() = *machine_.rank_slot();
  heartbeat.set_activity(progress_.activity());
  heartbeat.set_progress(progress_.count());
  const TrainerProgress::StepTimes times = progress_.TakeSteps();
  heartbeat.set_step_seconds(times.step_seconds);
  heartbeat.set_wait_seconds(times.wait_seconds);
  for (v1::Fallback& fallback : progress_.fallbacks()) {
    *heartbeat.add_fallbacks() = std::move(fallback);
  }
  for (v1::RunWarning& warning : progress_.warnings()) {
    *heartbeat.add_warnings() = std::move(warning);
  }
  return heartbeat;
}

void GroupMember::OnMessage(const v1::CoordinatorMessage& message) {
  if (message.has_drain() && !drain_requested_.exchange(true)) OnDrain(message.drain());
  if (message.has_run_ended()) trainer_->OnRunEnded(message.run_ended());
  // An assignment, which has no such field, ends the wait.
  if (message.has_waiting() || message.has_assignment()) trainer_->OnWaiting(message.waiting());
  absl::MutexLock lock(&mutex_);
  if (message.release().run_ended()) run_ended_ = true;
  Do(machine_.Receive(message));
  if (!options_.exit_when_done || !message.release().run_ended() || run_done_.has_value()) return;
  run_done_ = message.release().run_done();
  if (options_.ended) options_.ended();
}

void GroupMember::OnDrain(const v1::Drain& drain) {
  LOG(INFO) << "drained by the coordinator";
  drain_seconds_ = drain.seconds();
  const std::optional<absl::Duration> own = options_.drains_within;
  if (own.has_value() && Drain(drain_time().value_or(*own))) return;
  if (options_.ended) options_.ended();
}

void GroupMember::OnConnection(bool connected) {
  LOG(INFO) << (connected ? "joined the coordinator at " : "lost the coordinator at ")
            << options_.coordinator;
  // The coordinator sends it again, if it is still true.
  if (!connected) return trainer_->OnWaiting(v1::Waiting());
  absl::MutexLock lock(&mutex_);
  Do(machine_.Connected());
}

// Must not block: the membership thread and the runner both call it with the lock held.
void GroupMember::Do(const AssignmentMachine::Actions& actions) {
  for (const AssignmentMachine::Action& action : actions) {
    if (const auto* cancel = std::get_if<AssignmentMachine::Cancel>(&action)) {
      LOG(INFO) << "released: " << cancel->reason;
    }
  }
  const auto make = [this](const v1::Assignment& assignment) {
    LOG(INFO) << "assigned to " << RankSlotName(assignment.place());
    SessionOwner& owner = *this;
    return std::make_shared<GroupSession>(assignment, owner, runtime_);
  };
  sessions_.CarryOut(actions, make,
                     [this](const v1::MemberMessage& message)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Send(message); });
}

void GroupMember::Send(const v1::MemberMessage& message) {
  if (client_ == nullptr) return;
  // After a reconnect, AssignmentMachine::Connected sends unanswered messages again.
  if (absl::Status status = client_->Send(message); !status.ok()) {
    VLOG(1) << "message not sent: " << status;
  }
}

void GroupMember::Report(const TrainingReport& report) {
  absl::MutexLock lock(&mutex_);
  Do(machine_.Report(report));
}

bool GroupMember::connected() const {
  absl::MutexLock lock(&mutex_);
  return client_ != nullptr && client_->connected();
}

// The runner trains in one session after another. At its end it only takes sessions, so that
// messages of a new session are not delivered to an old one.
void GroupMember::Run() {
  while (true) {
    std::shared_ptr<GroupSession> session;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &GroupMember::HasSessionOrStopping));
      if (stopping_) return;
      session = sessions_.TakeNext();
    }
    TrainerOutcome outcome;
    if (end().ok()) outcome = Train(*session);
    // The next session allocates other sizes, so that the freed memory would add up.
    malloc_trim(0);
    absl::MutexLock lock(&mutex_);
    sessions_.Leave();
    // The group was released or has failed before its boundary.
    if (leaves_at_.has_value() && !stopping_ && options_.ended) {
      const absl::Status cancelled = session->cancellation().status();
      if (!run_ended_) released_ = cancelled.ok() ? outcome.status : cancelled;
      options_.ended();
    }
  }
}

// Trains until the group is released or fails. The connection to peers is established here, because
// its identity must contain the generation: ranks of another generation are refused.
TrainerOutcome GroupMember::Train(GroupSession& session) {
  const v1::RankSlot rank_slot = session.assignment().place();
  MemberLoopOptions options;
  options.states = &states_;
  options.residuals = &residuals_;
  options.progress = &progress_;
  options.exchange_silence = options_.exchange_silence;
  options.runtime = &runtime_;
  options.connect =
      [&](const v1::Assignment& assignment) -> absl::StatusOr<std::unique_ptr<Transport>> {
    CADRE_ASSIGN_OR_RETURN(const SecretKey key, KeyOf(assignment));
    const GroupIdentity identity{.protocol = kProtocol,
                                 .run = assignment.lineage(),
                                 .group = rank_slot.group(),
                                 .generation = rank_slot.generation(),
                                 .key = key};
    const ConnectOptions connect{.deadline = absl::Now() + kConnectTimeout,
                                 .cancelled = [&] { return !session.cancellation().status().ok(); },
                                 .timeout = kPeerTimeout,
                                 .shared_memory = options_.shared_memory,
                                 .connections = options_.tcp_connections};
    const std::vector<std::string> peers(assignment.peers().begin(), assignment.peers().end());
    return ConnectGroup(*listener_, identity, rank_slot.rank(), peers, connect);
  };
  const GenerationTrainer::Result result = trainer_->Train(session, options, counters_);
  // Destroying what the generation has used may hang, too.
  progress_.Enter(v1::ACTIVITY_UNSPECIFIED);
  bool ended = !result.end.ok();
  {
    absl::MutexLock lock(&mutex_);
    // A member that is being stopped does not train again in any case.
    ended = ended && !stopping_;
    if (ended) end_ = result.end;
  }
  ReportOutcome(session, result.outcome);
  if (ended && options_.ended != nullptr) options_.ended();
  return result.outcome;
}

absl::Status GroupMember::end() {
  absl::MutexLock lock(&mutex_);
  return end_;
}

absl::Status GroupMember::released() {
  absl::MutexLock lock(&mutex_);
  return released_;
}

// A cancelled session needs no report, because the coordinator cancelled it.
void GroupMember::ReportOutcome(GroupSession& session, const TrainerOutcome& outcome) {
  const v1::RankSlot& rank_slot = session.assignment().place();
  absl::MutexLock lock(&mutex_);
  if (!session.cancellation().status().ok()) {
    LOG(INFO) << "left " << RankSlotName(rank_slot);
    return;
  }
  if (outcome.peer_released) {
    LOG(INFO) << "left " << RankSlotName(rank_slot) << ": " << outcome.status.message();
  } else {
    LOG(WARNING) << "cannot continue in " << RankSlotName(rank_slot) << " ("
                 << EnumText(outcome.cause) << "): " << outcome.status;
  }
  v1::GroupFailed failed;
  *failed.mutable_place() = rank_slot;
  failed.set_cause(outcome.cause);
  failed.set_reason(std::string(outcome.status.message()));
  for (const int rank : outcome.suspects) failed.add_suspects(rank);
  Do(machine_.Fail(failed));
}

}  // namespace cadre
