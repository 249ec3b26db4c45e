#include "coordinator/service.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/grpc_status.h"
#include "base/status.h"
#include "proto/schema_hash.h"

namespace cadre {
namespace {

const char kStopping[] = "the coordinator is stopping";

}  // namespace

// One unary call. Owned by gRPC; registered with the service until it is finished.
class CoordinatorService::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(RequestId id, CoordinatorService* service) : id_(id), service_(service) {}

  RequestId id() const { return id_; }
  void OnCancel() override { service_->OnCancelled(id_); }
  void OnDone() override { delete this; }

 private:
  const RequestId id_;
  CoordinatorService* const service_;
};

class CoordinatorService::MembershipService final : public v1::Membership::CallbackService {
 public:
  explicit MembershipService(CoordinatorService* service) : service_(service) {}
  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Join(
      grpc::CallbackServerContext*) override {
    return service_->Join();
  }

 private:
  CoordinatorService* const service_;
};

class CoordinatorService::RunsService final : public v1::Runs::CallbackService {
 public:
  explicit RunsService(CoordinatorService* service) : service_(service) {}
  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext*, const v1::SubmitRequest* request,
                                   v1::SubmitReply* reply) override {
    return service_->Submit(request, reply);
  }
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext*, const v1::StopRequest* request,
                                 v1::StopReply*) override {
    return service_->Stop(request);
  }
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext*, const v1::ListRequest*,
                                 v1::ListReply* reply) override {
    return service_->Query([reply](const Machine& machine, absl::Time now) {
      v1::StatusReply status = machine.Status(now);
      reply->mutable_runs()->Swap(status.mutable_runs());
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext*, const v1::WaitRequest* request,
                                 v1::WaitReply* reply) override {
    return service_->Wait(request, reply);
  }

 private:
  CoordinatorService* const service_;
};

class CoordinatorService::StatusService final : public v1::Status::CallbackService {
 public:
  explicit StatusService(CoordinatorService* service) : service_(service) {}
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const v1::StatusRequest* request,
                                v1::StatusReply* reply) override {
    return service_->Query([run = request->run(), reply](const Machine& machine, absl::Time now) {
      *reply = machine.Status(now, run);
      if (run.empty() || reply->runs_size() > 0) return absl::OkStatus();
      return absl::NotFoundError(absl::StrCat("no such run: ", run));
    });
  }
  grpc::ServerUnaryReactor* Trace(grpc::CallbackServerContext*, const v1::TraceRequest* request,
                                  v1::TraceReply* reply) override {
    return service_->Trace(request, reply);
  }
  grpc::ServerWriteReactor<v1::WatchUpdate>* Watch(grpc::CallbackServerContext*,
                                                   const v1::WatchRequest* request) override {
    return service_->Watch(request);
  }

 private:
  CoordinatorService* const service_;
};

CoordinatorService::CoordinatorService(Options options)
    : options_(std::move(options)),
      membership_(std::make_unique<MembershipService>(this)),
      runs_(std::make_unique<RunsService>(this)),
      status_(std::make_unique<StatusService>(this)) {}

CoordinatorService::~CoordinatorService() { Drain(); }

absl::Status CoordinatorService::Start(Store* store, const Clock* clock) {
  CADRE_ASSIGN_OR_RETURN(loop_, Loop::Start(options_.loop, store, clock, this));
  return absl::OkStatus();
}

std::vector<grpc::Service*> CoordinatorService::services() {
  return {membership_.get(), runs_.get(), status_.get()};
}

void CoordinatorService::Drain() {
  if (loop_ != nullptr) loop_->Stop();
  EndAll(absl::UnavailableError(kStopping));
}

void CoordinatorService::EndAll(const absl::Status& status) {
  std::map<RequestId, Call*> calls;
  {
    absl::MutexLock lock(&mutex_);
    drained_ = true;
    for (auto& [id, stream] : streams_) stream->End(status);
    for (auto& [id, watch] : watches_) watch->End(status);
    calls.swap(calls_);
    submits_.clear();
    waits_.clear();
    traces_.clear();
  }
  for (auto& [id, call] : calls) call->Finish(ToGrpc(status));
}

// ---- Calls

CoordinatorService::Call* CoordinatorService::NewCall() {
  absl::MutexLock lock(&mutex_);
  Call* const call = new Call(++last_id_, this);
  calls_[call->id()] = call;
  return call;
}

void CoordinatorService::Finish(RequestId request, const std::function<absl::Status()>& fill) {
  Call* call = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    auto it = calls_.find(request);
    if (it == calls_.end()) return;
    call = it->second;
    calls_.erase(it);
    submits_.erase(request);
    waits_.erase(request);
    traces_.erase(request);
  }
  // The call is no longer registered, so only this thread finishes it and its reply is valid until
  // then.
  call->Finish(ToGrpc(fill()));
}

void CoordinatorService::OnCancelled(RequestId request) {
  bool traces = false;
  {
    absl::MutexLock lock(&mutex_);
    traces = traces_.contains(request);
  }
  Finish(request, [] { return absl::CancelledError("cancelled by the caller"); });
  // The group can be traced by other calls now.
  if (traces && loop_ != nullptr) loop_->Post(CancelTrace{request});
}

grpc::ServerUnaryReactor* CoordinatorService::Submit(const v1::SubmitRequest* request,
                                                     v1::SubmitReply* reply) {
  Call* const call = NewCall();
  const RequestId id = call->id();
  if (request->schema_hash() != SchemaHash()) {
    Finish(id, [] {
      return absl::FailedPreconditionError(
          "the command and the coordinator have different schemas; run the same build of both");
    });
    return call;
  }
  SubmitRun event{.request = id, .spec = request->spec()};
  {
    absl::MutexLock lock(&mutex_);
    submits_[id] = reply;
    event.lineage_seed = (uint64_t{entropy_()} << 32) | entropy_();
  }
  if (loop_ == nullptr || !loop_->Post(std::move(event))) {
    Finish(id, [] { return absl::UnavailableError(kStopping); });
  }
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Stop(const v1::StopRequest* request) {
  Call* const call = NewCall();
  const RequestId id = call->id();
  if (loop_ == nullptr || !loop_->Post(StopRun{id, request->run(), request->reason()})) {
    Finish(id, [] { return absl::UnavailableError(kStopping); });
  }
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Query(
    std::function<absl::Status(const Machine&, absl::Time)> look) {
  Call* const call = NewCall();
  const RequestId id = call->id();
  auto query = [this, id, look = std::move(look)](const Machine& machine, absl::Time now) {
    Finish(id, [&] { return look(machine, now); });
  };
  if (loop_ == nullptr || !loop_->RunQuery(std::move(query))) {
    Finish(id, [] { return absl::UnavailableError(kStopping); });
  }
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Wait(const v1::WaitRequest* request,
                                                   v1::WaitReply* reply) {
  Call* const call = NewCall();
  const RequestId id = call->id();
  bool room = false;
  {
    absl::MutexLock lock(&mutex_);
    room = waits_.size() < options_.max_waiters;
    if (room) waits_[id] = {request->run(), reply};
  }
  if (!room) {
    Finish(id, [] { return absl::ResourceExhaustedError("too many Wait calls"); });
    return call;
  }
  // The empty query makes the loop call OnSettled, which answers waiting calls.
  if (loop_ == nullptr || !loop_->RunQuery([](const Machine&, absl::Time) {})) {
    Finish(id, [] { return absl::UnavailableError(kStopping); });
  }
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Trace(const v1::TraceRequest* request,
                                                    v1::TraceReply* reply) {
  Call* const call = NewCall();
  const RequestId id = call->id();
  {
    absl::MutexLock lock(&mutex_);
    traces_[id] = reply;
  }
  const TraceGroup event{
      .request = id, .run = request->run(), .group = request->group(), .steps = request->steps()};
  if (loop_ == nullptr || !loop_->Post(event)) {
    Finish(id, [] { return absl::UnavailableError(kStopping); });
  }
  return call;
}

grpc::ServerWriteReactor<v1::WatchUpdate>* CoordinatorService::Watch(
    const v1::WatchRequest* request) {
  WatchStream* stream = nullptr;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t id = ++last_id_;
    stream = new WatchStream(request->run(), [this, id] {
      absl::MutexLock done(&mutex_);
      watches_.erase(id);
    });
    if (drained_) refused = absl::UnavailableError(kStopping);
    if (watches_.size() >= options_.max_waiters) {
      refused = absl::ResourceExhaustedError("too many Watch calls");
    }
    if (refused.ok()) watches_[id] = stream;
  }
  if (refused.ok() && (loop_ == nullptr || !loop_->RunQuery([](const Machine&, absl::Time) {}))) {
    refused = absl::UnavailableError(kStopping);
  }
  if (!refused.ok()) stream->End(refused);
  return stream;
}

// ---- Streams

grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* CoordinatorService::Join() {
  JoinStream* stream = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const ConnectionId connection = ++last_id_;
    stream = new JoinStream(connection, this, options_.stream_capacity);
    streams_[connection] = stream;
  }
  stream->Begin();
  return stream;
}

bool CoordinatorService::OnStreamEvent(Event event) {
  return loop_ != nullptr && loop_->Post(std::move(event));
}

void CoordinatorService::OnStreamDone(ConnectionId connection) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(connection);
}

// ---- Callbacks of the loop. The mutex is held while a stream is used, so that it is not
// destroyed.

void CoordinatorService::OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  auto it = streams_.find(connection);
  if (it != streams_.end()) it->second->Send(message);
}

void CoordinatorService::OnDisconnect(ConnectionId connection, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  auto it = streams_.find(connection);
  if (it == streams_.end()) return;
  LOG(INFO) << "stream " << connection << " ended: " << status;
  it->second->End(status);
}

void CoordinatorService::OnReplied(const Replied& replied) {
  v1::SubmitReply* submit = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    auto it = submits_.find(replied.request);
    if (it != submits_.end()) submit = it->second;
  }
  Finish(replied.request, [&] {
    if (submit != nullptr) submit->set_run(replied.run);
    return replied.status;
  });
}

void CoordinatorService::OnTraceAnswered(const TraceAnswered& answered) {
  v1::TraceReply* reply = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    auto it = traces_.find(answered.request);
    if (it != traces_.end()) reply = it->second;
  }
  Finish(answered.request, [&] {
    if (reply != nullptr) *reply = answered.reply;
    return answered.status;
  });
}

absl::Time CoordinatorService::OnSettled(const Machine& machine, absl::Time now) {
  AnswerWaits(machine, now);
  absl::Time again = absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  for (auto& [id, watch] : watches_) again = std::min(again, watch->MaybeSend(machine, now));
  return again;
}

void CoordinatorService::AnswerWaits(const Machine& machine, absl::Time now) {
  std::map<RequestId, Waiting> over;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, waiting] : waits_) {
      if (machine.Ended(waiting.run)) over[id] = waiting;
    }
  }
  for (const auto& entry : over) {
    const Waiting& waiting = entry.second;
    Finish(entry.first, [&]() -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(*waiting.reply->mutable_run(), machine.RunStatus(waiting.run, now));
      return absl::OkStatus();
    });
  }
}

}  // namespace cadre
