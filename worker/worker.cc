#include "worker/worker.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/hardware.h"
#include "base/identity.h"
#include "base/status.h"
#include "glog/logging.h"
#include "proto/enum_text.h"
#include "proto/schema_hash.h"
#include "worker/train/trainer.h"
#include "worker/transport/connect_group.h"

namespace cadre {
namespace {

// A group that is not complete by then is given up; the coordinator makes a new one.
constexpr absl::Duration kConnectTimeout = absl::Seconds(60);
// The longest time in which no byte moves between two ranks that live: a slow peer's longest step.
// The death of a peer is seen at once and does not wait for this.
// Longer than an exchange with a shard may take, so that a shard that is away is what is blamed.
constexpr absl::Duration kSilence = absl::Minutes(11);

std::string PlaceName(const v1::RankSlot& place) {
  return absl::StrCat(place.run(), ", group ", place.group(), ", generation ", place.generation(),
                      ", rank ", place.rank());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerOptions& options) {
  std::unique_ptr<Worker> worker(new Worker(options));
  CADRE_ASSIGN_OR_RETURN(worker->listener_, TcpListener::Listen({.address = options.listen,
                                                                 .counters = &worker->counters_}));
  CADRE_ASSIGN_OR_RETURN(worker->compute_, worker->NewCompute());
  worker->device_name_ = worker->compute_->name();
  worker->memory_bytes_ = worker->compute_->memory_bytes();
  LOG(INFO) << "computing on " << worker->device_name_;
  worker->runner_ = std::thread([w = worker.get()] { w->Run(); });
  CADRE_RETURN_IF_ERROR(worker->Join());
  return worker;
}

Worker::Worker(const WorkerOptions& options) : options_(options), incarnation_(NewIdentity()) {}

Worker::~Worker() {
  const absl::Status end = this->end();
  const std::string reason = end.ok() ? "the worker was told to end" : std::string(end.message());
  if (membership_ != nullptr) membership_->Stop(reason);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    outlet_ = nullptr;
    if (current_ != nullptr) current_->Cancel(reason);
  }
  if (runner_.joinable()) runner_.join();
}

absl::Status Worker::Join() {
  MembershipClient::Options client;
  client.coordinator = options_.coordinator;
  client.dial_timeout = options_.dial_timeout;
  client.seed = NewSeed();
  client.hello = [this] { return MakeHello(); };
  client.on_message = [this](const v1::CoordinatorMessage& message) { OnMessage(message); };
  client.on_connection = [this](bool connected) { OnConnection(connected); };
  client.counters = [this] { return counters_.Snapshot(); };
  CADRE_ASSIGN_OR_RETURN(membership_, MembershipClient::Start(std::move(client)));
  absl::MutexLock lock(&mutex_);
  outlet_ = membership_.get();
  // An assignment may have come, and something been said to it, before there was an outlet.
  Do(machine_.Connected());
  return absl::OkStatus();
}

v1::Hello Worker::MakeHello() {
  v1::Hello hello;
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(options_.name);
  hello.set_version(options_.version);
  hello.set_incarnation(incarnation_);
  hello.set_address(options_.advertise.empty() ? listener_->address() : options_.advertise);
  hello.set_host(HostName());
  hello.set_device(device_name_);
  hello.set_device_kind(compute_->kernels().device().is_host() ? v1::Cluster::CPU
                                                               : v1::Cluster::CUDA);
  hello.set_cores(static_cast<uint32_t>(UsableCores()));
  hello.set_memory_bytes(memory_bytes_);
  absl::MutexLock lock(&mutex_);
  if (machine_.place()) *hello.mutable_place() = *machine_.place();
  return hello;
}

void Worker::OnMessage(const v1::CoordinatorMessage& message) {
  if (message.has_refused()) {
    LOG(WARNING) << "refused by the coordinator (" << EnumText(message.refused().refusal())
                 << "): " << message.refused().reason();
  }
  absl::MutexLock lock(&mutex_);
  Do(machine_.Receive(message));
}

void Worker::OnConnection(bool connected) {
  LOG(INFO) << (connected ? "joined the coordinator at " : "lost the coordinator at ")
            << options_.coordinator;
  if (!connected) return;
  absl::MutexLock lock(&mutex_);
  Do(machine_.Connected());
}

void Worker::Do(AssignmentMachine::Actions actions) {
  for (AssignmentMachine::Action& action : actions) {
    if (auto* begin = std::get_if<AssignmentMachine::Begin>(&action)) {
      LOG(INFO) << "assigned to " << PlaceName(begin->assignment.place());
      waiting_ = MakeSession(begin->assignment);
    } else if (auto* cancel = std::get_if<AssignmentMachine::Cancel>(&action)) {
      LOG(INFO) << "released: " << cancel->reason;
      if (current_ != nullptr) current_->Cancel(cancel->reason);
      waiting_.reset();
    } else if (auto* say = std::get_if<AssignmentMachine::Send>(&action)) {
      Send(say->message);
    } else {
      // The rest concerns the session of the current place, which trains or is about to.
      const std::shared_ptr<GroupSession>& session = waiting_ != nullptr ? waiting_ : current_;
      if (session == nullptr) continue;
      if (auto* go = std::get_if<AssignmentMachine::Go>(&action)) session->Deliver(go->start);
      if (auto* decide = std::get_if<AssignmentMachine::Decide>(&action)) {
        session->Deliver(decide->decision);
      }
      if (auto* move = std::get_if<AssignmentMachine::MoveShards>(&action)) {
        session->MoveShards(move->shards);
      }
      if (auto* next = std::get_if<AssignmentMachine::TraceNext>(&action)) {
        session->Deliver(next->trace);
      }
    }
  }
}

void Worker::Send(const v1::MemberMessage& message) {
  if (outlet_ == nullptr) return;
  // What is lost with the stream is said again by Connected().
  if (absl::Status status = outlet_->Send(message); !status.ok()) {
    VLOG(1) << "not sent now: " << status;
  }
}

template <typename T>
std::function<void(const T&)> Worker::Teller() {
  return [this](const T& message) {
    absl::MutexLock lock(&mutex_);
    Do(machine_.Tell(message));
  };
}

std::shared_ptr<GroupSession> Worker::MakeSession(const v1::Assignment& assignment) {
  return std::make_shared<GroupSession>(assignment, GroupSession::Outlet{
                                                        .prepared = Teller<v1::Prepared>(),
                                                        .progress = Teller<v1::Progress>(),
                                                        .measured = Teller<v1::Measured>(),
                                                        .contributed = Teller<v1::Contributed>(),
                                                        .adopted = Teller<v1::Adopted>(),
                                                        .evaluated = Teller<v1::Evaluated>(),
                                                        .traced = Teller<v1::Traced>(),
                                                        .connected = [this] { return Connected(); },
                                                    });
}

bool Worker::Connected() {
  absl::MutexLock lock(&mutex_);
  return outlet_ != nullptr && outlet_->connected();
}

void Worker::Run() {
  while (true) {
    std::shared_ptr<GroupSession> session;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Worker::HasSessionOrStopping));
      if (stopping_) return;
      session = std::move(waiting_);
      waiting_.reset();
      current_ = session;
    }
    if (compute_ != nullptr) Train(*session);
    absl::MutexLock lock(&mutex_);
    if (current_ == session) current_.reset();
  }
}

void Worker::Train(GroupSession& session) {
  const v1::RankSlot place = session.assignment().place();
  TrainerOptions options;
  options.links = &links_;
  options.connect_data = compute_->connect_data();
  options.connect = [&](const v1::Assignment& assignment) {
    const GroupIdentity identity{.schema_hash = SchemaHash(),
                                 .run = assignment.lineage(),
                                 .group = place.group(),
                                 .generation = place.generation()};
    const ConnectOptions connect{.deadline = absl::Now() + kConnectTimeout,
                                 .cancelled = [&] { return !session.cancellation().status().ok(); },
                                 .timeout = kSilence,
                                 .shared_memory = options_.shared_memory,
                                 .connections = options_.tcp_lanes};
    const std::vector<std::string> peers(assignment.peers().begin(), assignment.peers().end());
    return ConnectGroup(*listener_, identity, static_cast<int>(place.rank()), peers, connect);
  };
  TrainerOutcome outcome = TrainAsMember(session.assignment(), compute_->kernels(), session,
                                         session.cancellation(), counters_, options);
  // Taken now, not from the outcome: what watches the group's transport may fail the device until
  // the last of the trainer is gone.
  const absl::Status device = compute_->kernels().device().status();
  const bool ended = !device.ok() && !RenewDevice(device);
  // The coordinator hears of the device, not of what broke because of it.
  if (ended) outcome.status = device;
  Report(session, outcome);
  if (ended && options_.ended != nullptr) options_.ended();
}

absl::StatusOr<std::unique_ptr<Compute>> Worker::NewCompute() const {
  return options_.make_compute ? options_.make_compute() : MakeCompute(options_.compute);
}

bool Worker::RenewDevice(const absl::Status& failed) {
  {
    absl::MutexLock lock(&mutex_);
    // Nothing more will be trained on any.
    if (stopping_) return true;
  }
  LOG(INFO) << "the device is made anew: " << failed;
  const bool lost = compute_->kernels().device().lost();
  // Its memory first.
  compute_.reset();
  absl::Status end = failed;
  if (!lost) {
    absl::StatusOr<std::unique_ptr<Compute>> made = NewCompute();
    if (made.ok()) {
      compute_ = *std::move(made);
      return true;
    }
    end = Annotate(made.status(), absl::StrCat(failed.message(), "; and no other can be had"));
  }
  LOG(ERROR) << "no device to train on any more: " << end;
  absl::MutexLock lock(&mutex_);
  end_ = end;
  return false;
}

absl::Status Worker::end() {
  absl::MutexLock lock(&mutex_);
  return end_;
}

void Worker::Report(GroupSession& session, const TrainerOutcome& outcome) {
  const v1::RankSlot& place = session.assignment().place();
  absl::MutexLock lock(&mutex_);
  if (!session.cancellation().status().ok()) {
    LOG(INFO) << "left " << PlaceName(place);
    return;
  }
  const std::string reason(outcome.status.message());
  LOG(WARNING) << "cannot go on in " << PlaceName(place) << ": " << outcome.status;
  Do(machine_.Fail(place, outcome.permanent, reason));
}

}  // namespace cadre
