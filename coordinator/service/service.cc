// Calls and streams are registered under one number each. A unary call is in `pending_` until it is
// finished: the code that removes it (its answer, its cancellation or Drain) is the only one that
// finishes it, so its reply is valid until then, and gRPC may delete the call at any later time.
// Streams delete themselves in OnDone, after they have left their map; the mutex is held while a
// stream is used, so that it is not destroyed meanwhile.
#include "coordinator/service/service.h"

#include <glog/logging.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/peer_text.h"
#include "base/protocol.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/identity.h"
#include "base/status.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Maximum numbers of concurrent Watch calls, of queries and of unary calls that wait.
constexpr int kMaxWatches = 1024;
constexpr int kMaxQueries = 256;
constexpr size_t kMaxCalls = 1024;
// Maximum of streams, and the time in which the peer of one that has ended must read what is left.
constexpr int kMaxStreams = 1 << 16;
constexpr absl::Duration kMaxEndTime = absl::Seconds(10);

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

// One unary call. Owned by gRPC; registered with the service until it is finished.
class CoordinatorService::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(RequestId id, CoordinatorService* service, bool traces)
      : id_(id), service_(service), traces_(traces) {}

  void OnCancel() override { service_->OnCancelled(id_, traces_); }
  void OnDone() override { delete this; }

 private:
  const RequestId id_;
  CoordinatorService* const service_;
  const bool traces_;
};

CoordinatorService::CoordinatorService(Loop::Options options, Credentials credentials)
    : options_(std::move(options)),
      credentials_(std::move(credentials)),
      query_slots_(kMaxQueries),
      watch_slots_(kMaxWatches),
      open_streams_(kMaxStreams, kMaxEndTime) {}

absl::Status CoordinatorService::Start(Store* store, std::string backup_path) {
  store_ = store;
  backup_path_ = std::move(backup_path);
  CADRE_ASSIGN_OR_RETURN(loop_, Loop::Start(options_, store, this));
  return absl::OkStatus();
}

std::vector<grpc::Service*> CoordinatorService::services() {
  v1::Membership::Service& membership = *this;
  v1::Runs::Service& runs = *this;
  v1::Status::Service& status = *this;
  v1::Members::Service& members = *this;
  return {&membership, &runs, &status, &members};
}

absl::Status CoordinatorService::Read(std::function<void(const Machine&, absl::Time)> read,
                                      absl::Duration timeout) {
  // Shared with a query that runs after the deadline.
  struct State {
    absl::Mutex mutex;
    bool done ABSL_GUARDED_BY(mutex) = false;
    bool abandoned ABSL_GUARDED_BY(mutex) = false;
  };
  const auto state = std::make_shared<State>();
  CADRE_RETURN_IF_ERROR(
      loop_->RunQuery([state, read = std::move(read)](const Machine& machine, absl::Time now) {
        absl::MutexLock lock(&state->mutex);
        if (!state->abandoned) read(machine, now);
        state->done = true;
      }));
  absl::MutexLock lock(&state->mutex);
  const bool done = state->mutex.AwaitWithTimeout(absl::Condition(&state->done), timeout);
  state->abandoned = !done;
  if (done) return absl::OkStatus();
  return absl::DeadlineExceededError("the event loop does not respond");
}

void CoordinatorService::Drain() {
  if (loop_ != nullptr) loop_->Stop();
  std::map<RequestId, Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    drained_ = true;
    for (auto& [id, stream] : streams_) stream->End(Stopping());
    for (auto& [id, watch] : watches_) watch->End(Stopping());
    if (backup_ != nullptr) backup_->End(Stopping());
    pending.swap(pending_);
  }
  for (auto& [id, one] : pending) one.call->Finish(ToGrpc(Stopping()));
}

// ---- Calls

// The loop may finish the call before this function returns the reactor to gRPC. gRPC then keeps
// the answer until it has the reactor, and the reactor deletes itself only afterwards.
CoordinatorService::Call* CoordinatorService::Begin(
    Fill fill, const std::function<absl::Status(RequestId)>& post, bool traces) {
  RequestId id = 0;
  Call* call = nullptr;
  bool full = false;
  {
    absl::MutexLock lock(&mutex_);
    id = ++last_id_;
    call = new Call(id, this, traces);
    full = pending_.size() >= kMaxCalls;
    pending_[id] = {call, std::move(fill)};
  }
  absl::Status posted = Stopping();
  if (full) {
    posted = BusyError("too many calls are waiting");
  } else if (loop_ != nullptr) {
    posted = post(id);
  }
  if (!posted.ok()) Finish(id, [&](const Fill&) { return posted; });
  return call;
}

CoordinatorService::Call* CoordinatorService::Request(Fill fill,
                                                      const std::function<Event(RequestId)>& make) {
  return Begin(std::move(fill),
               [&](RequestId id) { return loop_->Post(make(id)) ? absl::OkStatus() : Stopping(); });
}

// A call may be finished by its answer, by its cancellation or by the end of the service. The first
// of them to remove the call under the lock finishes it, and runs `finish` without the lock; the
// others do not find the call any more.
void CoordinatorService::Finish(RequestId request,
                                absl::FunctionRef<absl::Status(const Fill&)> finish) {
  Pending pending;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = pending_.find(request);
    if (found == pending_.end()) return;
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending.call->Finish(ToGrpc(finish(pending.fill)));
}

void CoordinatorService::OnCancelled(RequestId request, bool traces) {
  Finish(request, [](const Fill&) { return absl::CancelledError("cancelled by the caller"); });
  // The group can be traced by other calls now.
  if (traces && loop_ != nullptr) loop_->Post(CancelTrace{request});
}

absl::Status CoordinatorService::RunQuery(const grpc::CallbackServerContext& context,
                                          Loop::Query query) {
  if (loop_ == nullptr) return Stopping();
  // The query has the slot as long as it exists.
  const auto slot = std::make_shared<StreamSlots::Slot>(query_slots_.Take(PeerName(context)));
  if (!slot->taken()) return BusyError("too many queries are waiting");
  return loop_->RunQuery([slot, query = std::move(query)](const Machine& machine, absl::Time now) {
    query(machine, now);
  });
}

CoordinatorService::Call* CoordinatorService::Query(
    const grpc::CallbackServerContext& context,
    std::function<absl::Status(const Machine&, absl::Time)> read) {
  return Begin(nullptr, [&](RequestId id) {
    return RunQuery(context,
                    [this, id, read = std::move(read)](const Machine& machine, absl::Time now) {
                      Finish(id, [&](const Fill&) { return read(machine, now); });
                    });
  });
}

absl::Status CoordinatorService::CheckSubmit(const v1::SubmitRequest& request) const {
  if (!AreCompatible(request.protocol(), kProtocol)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the command has protocol ", request.protocol(), ", the coordinator ",
                     kProtocol, "; only adjacent protocols work together"));
  }
  const std::string& name = request.spec().name();
  if (RunNumber(name) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: is '", name, "', which has the form of a run's id; give another one"));
  }
  return CheckSpec(options_.machine, request.spec());
}

grpc::ServerUnaryReactor* CoordinatorService::Submit(grpc::CallbackServerContext*,
                                                     const v1::SubmitRequest* request,
                                                     v1::SubmitReply* reply) {
  const Fill fill = [reply](const Replied& replied) {
    reply->set_run(replied.run);
    reply->set_ended(replied.ended);
  };
  return Begin(fill, [&](RequestId id) {
    CADRE_RETURN_IF_ERROR(CheckSubmit(*request));
    std::random_device entropy;
    const bool posted =
        loop_->Post(SubmitRun{.request = id,
                              .spec = request->spec(),
                              .lineage_seed = (uint64_t{entropy()} << 32) | entropy(),
                              .join_existing = request->join_existing(),
                              .join_ended = request->join_ended()});
    return posted ? absl::OkStatus() : Stopping();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Stop(grpc::CallbackServerContext*,
                                                   const v1::StopRequest* request, v1::StopReply*) {
  return Begin(nullptr, [&](RequestId id) -> absl::Status {
    if (request->reason().size() > kMaxReason) {
      return absl::InvalidArgumentError(
          absl::StrCat("reason: has more than the ", kMaxReason, " bytes that are allowed"));
    }
    const bool posted = loop_->Post(StopRun{id, request->run(), ShortReason(request->reason())});
    return posted ? absl::OkStatus() : Stopping();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Delete(grpc::CallbackServerContext*,
                                                     const v1::DeleteRequest* request,
                                                     v1::DeleteReply*) {
  return Request(nullptr, [&](RequestId id) { return DeleteRun{id, request->run()}; });
}

grpc::ServerUnaryReactor* CoordinatorService::Scale(grpc::CallbackServerContext*,
                                                    const v1::ScaleRequest* request,
                                                    v1::ScaleReply*) {
  return Request(nullptr, [&](RequestId id) {
    return ScaleRun{id, request->run(), request->groups()};
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Resume(grpc::CallbackServerContext*,
                                                     const v1::ResumeRequest* request,
                                                     v1::ResumeReply*) {
  return Request(nullptr, [&](RequestId id) { return ResumeRun{id, request->run()}; });
}

grpc::ServerUnaryReactor* CoordinatorService::Adopt(grpc::CallbackServerContext*,
                                                    const v1::AdoptRequest* request,
                                                    v1::AdoptReply* reply) {
  const Fill fill = [reply](const Replied& replied) { *reply = replied.adopted; };
  return Request(fill, [&](RequestId id) { return AdoptRuns{id, request->run()}; });
}

grpc::ServerUnaryReactor* CoordinatorService::List(grpc::CallbackServerContext* context,
                                                   const v1::ListRequest*, v1::ListReply* reply) {
  return Query(*context, [reply](const Machine& machine, absl::Time now) {
    *reply = machine.List(now);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Get(grpc::CallbackServerContext* context,
                                                  const v1::StatusRequest* request,
                                                  v1::StatusReply* reply) {
  const std::optional<uint64_t> left =
      request->page_token().empty() ? credentials_.SecondsLeft() : std::nullopt;
  return Query(*context,
               [=, request = *request](const Machine& machine, absl::Time now) -> absl::Status {
                 CADRE_ASSIGN_OR_RETURN(*reply, machine.Status(now, request));
                 auto& counters = *reply->mutable_counters();
                 if (left.has_value()) counters["certificate_seconds_left"] = *left;
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* CoordinatorService::History(grpc::CallbackServerContext* context,
                                                      const v1::HistoryRequest* request,
                                                      v1::HistoryReply* reply) {
  return Query(*context,
               [=, request = *request](const Machine& machine, absl::Time) -> absl::Status {
                 CADRE_ASSIGN_OR_RETURN(*reply, machine.History(request));
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* CoordinatorService::Locate(grpc::CallbackServerContext* context,
                                                     const v1::LocateRequest* request,
                                                     v1::LocateReply* reply) {
  return Query(*context,
               [=, run = request->run()](const Machine& machine, absl::Time) -> absl::Status {
                 CADRE_ASSIGN_OR_RETURN(*reply, machine.Locate(run));
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* CoordinatorService::Events(grpc::CallbackServerContext* context,
                                                     const v1::EventsRequest* request,
                                                     v1::EventsReply* reply) {
  return Query(*context, [=, request = *request](const Machine& machine, absl::Time) {
    *reply = machine.Events(request);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Trace(grpc::CallbackServerContext*,
                                                    const v1::TraceRequest* request,
                                                    v1::TraceReply* reply) {
  const Fill fill = [reply](const Replied& replied) { *reply = replied.trace; };
  const auto post = [&](RequestId id) {
    const bool posted = loop_->Post(TraceGroup{.request = id,
                                               .run = request->run(),
                                               .group = request->group(),
                                               .steps = request->steps()});
    return posted ? absl::OkStatus() : Stopping();
  };
  return Begin(fill, post, /*traces=*/true);
}

grpc::ServerUnaryReactor* CoordinatorService::Cordon(grpc::CallbackServerContext*,
                                                     const v1::CordonRequest* request,
                                                     v1::CordonReply* reply) {
  const Fill fill = [reply](const Replied& replied) {
    reply->mutable_members()->Add(replied.members.begin(), replied.members.end());
  };
  return Request(fill, [&](RequestId id) {
    return CordonMembers{.request = id,
                         .member = request->member(),
                         .undo = request->undo(),
                         .drain = request->drain(),
                         .drain_seconds = request->drain_seconds()};
  });
}

grpc::ServerWriteReactor<v1::WatchUpdate>* CoordinatorService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  WatchStream* stream = nullptr;
  uint64_t id = 0;
  absl::Status refused;
  StreamSlots::Slot slot = watch_slots_.Take(PeerName(*context));
  if (!slot.taken()) refused = BusyError("too many Watch calls");
  {
    absl::MutexLock lock(&mutex_);
    id = ++last_id_;
    stream = new WatchStream(request->run(), std::move(slot), open_streams_, context, [this, id] {
      absl::MutexLock done(&mutex_);
      watches_.erase(id);
    });
    if (drained_) refused = Stopping();
    if (refused.ok()) watches_[id] = stream;
  }
  if (!refused.ok()) {
    stream->End(refused);
  } else if (const absl::Status woken = RunQuery(*context, [](const Machine&, absl::Time) {});
             !woken.ok()) {
    // Drain may have ended the stream.
    absl::MutexLock lock(&mutex_);
    if (const auto found = watches_.find(id); found != watches_.end()) found->second->End(woken);
  }
  return stream;
}

// No step before Begin can end the stream, so it exists until PrepareBackup or Drain.
grpc::ServerWriteReactor<v1::BackupChunk>* CoordinatorService::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest*) {
  absl::Status refused;
  BackupStream* stream = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (drained_) refused = Stopping();
    if (backup_ != nullptr && !backup_->ended()) {
      refused = absl::ResourceExhaustedError("another backup is in progress");
    }
    if (backup_path_.empty()) refused = absl::UnimplementedError("the store cannot be copied");
    const uint64_t id = ++last_id_;
    stream = new BackupStream(backup_path_, open_streams_, context, [this, id] {
      absl::MutexLock done(&mutex_);
      if (backup_id_ == id) backup_ = nullptr;
    });
    if (refused.ok()) {
      backup_ = stream;
      backup_id_ = id;
    }
  }
  if (refused.ok() && loop_ == nullptr) refused = Stopping();
  if (refused.ok()) {
    refused = loop_->RunQuery([this](const Machine&, absl::Time) { PrepareBackup(); });
  }
  if (!refused.ok()) stream->End(refused);
  return stream;
}

void CoordinatorService::PrepareBackup() {
  const absl::Status written = WriteBackup(*store_, backup_path_);
  if (!written.ok()) LOG(ERROR) << "backup: " << written;
  absl::MutexLock lock(&mutex_);
  if (backup_ == nullptr) return;
  if (written.ok()) {
    backup_->Begin();
  } else {
    backup_->End(written);
  }
}

// ---- Streams

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CoordinatorService::Join(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<std::optional<Identity>> caller = CallerIdentity(*context->auth_context());
  JoinStream* stream = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const ConnectionId connection = ++last_id_;
    stream = new JoinStream(
        connection, caller.value_or(std::nullopt),
        [this](Event event) { return loop_ != nullptr && loop_->Post(std::move(event)); },
        open_streams_, context,
        [this, connection] {
          absl::MutexLock done(&mutex_);
          streams_.erase(connection);
        });
    streams_[connection] = stream;
  }
  if (!caller.ok()) {
    stream->End(caller.status());
  } else if (!stream->admitted()) {
    stream->End(BusyError("too many streams"));
  } else {
    stream->Begin();
  }
  return stream;
}

// ---- Callbacks of the loop

void CoordinatorService::OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(connection);
  if (found != streams_.end()) found->second->Send(message);
}

void CoordinatorService::OnDisconnect(ConnectionId connection, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(connection);
  if (found == streams_.end()) return;
  if (const auto line = ended_log_.Pass(
          absl::StrCat("stream ", connection, " ended: ", Escaped(status.ToString())),
          absl::Now())) {
    LOG(INFO) << *line;
  }
  found->second->End(status);
}

void CoordinatorService::OnHandled(ConnectionId connection) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(connection);
  if (found != streams_.end()) found->second->OnHandled();
}

void CoordinatorService::OnReplied(const Replied& replied) {
  Finish(replied.request, [&](const Fill& fill) {
    if (fill) fill(replied);
    return replied.status;
  });
}

absl::Time CoordinatorService::OnSettled(const Machine& machine, absl::Time now) {
  absl::Time again = absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  for (auto& [id, watch] : watches_)
    again = std::min(again, watch->MaybeSend(machine, updates_, now));
  return again;
}

}  // namespace cadre
