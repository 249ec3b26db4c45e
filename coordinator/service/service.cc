// Calls and streams are registered under one number each. A unary call is in `pending_` from its
// request until it is finished: the code that removes it (its answer, its cancellation or Drain) is
// the only one that finishes it, so its reply is valid until then, and gRPC may delete the call at
// any later time.
// Streams delete themselves in OnDone, after they have left their map; the mutex is held while a
// stream is used, so that it is not destroyed meanwhile.
#include "coordinator/service/service.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/peer_text.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/identity.h"
#include "base/status.h"

namespace cadre {
namespace {

// Maximum numbers of concurrent Watch calls, of queries and of unary calls that wait.
constexpr int kMaxWatches = 1024;
constexpr int kMaxQueries = 256;
constexpr size_t kMaxCalls = 1024;
// Requests that are read at the same time. Each may have kMaxMessageBytes.
constexpr int kRequestTurns = 4;
// Maximum of streams, and the time in which the peer of one that has ended must read what is left.
constexpr int kMaxStreams = 1 << 16;
constexpr absl::Duration kMaxEndTime = absl::Seconds(20);

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping"); }

}  // namespace

CoordinatorService::CoordinatorService(Loop::Options options, Credentials credentials)
    : options_(std::move(options)),
      credentials_(std::move(credentials)),
      call_services_(MakeCallServices(*this)),
      request_turns_(kRequestTurns, kMaxCalls),
      query_slots_(kMaxQueries),
      watch_slots_(kMaxWatches),
      not_serving_(NotServingError("the coordinator is starting")),
      open_streams_(kMaxStreams, kMaxEndTime) {}

absl::Status CoordinatorService::Start(Store* store, std::string backup_path) {
  store_ = store;
  updates_ = RunUpdates();
  Loop::Options options = options_;
  options.on_failure = [this](const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      failure_ = status;
    }
    if (options_.on_failure) options_.on_failure(status);
  };
  {
    absl::MutexLock lock(&mutex_);
    failure_ = absl::OkStatus();
    backup_path_ = std::move(backup_path);
  }
  CADRE_ASSIGN_OR_RETURN(std::shared_ptr<Loop> loop, Loop::Start(std::move(options), store, this));
  absl::MutexLock lock(&mutex_);
  loop_ = std::move(loop);
  return absl::OkStatus();
}

std::shared_ptr<Loop> CoordinatorService::loop() const {
  absl::MutexLock lock(&mutex_);
  return loop_;
}

absl::Status CoordinatorService::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::StatusOr<std::shared_ptr<Loop>> CoordinatorService::LoopOrReason() const {
  absl::MutexLock lock(&mutex_);
  if (loop_ == nullptr) return not_serving_;
  return loop_;
}

std::vector<grpc::Service*> CoordinatorService::services() {
  std::vector<grpc::Service*> services = {this};
  for (const auto& service : call_services_) services.push_back(service.get());
  return services;
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
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<Loop> loop, LoopOrReason());
  CADRE_RETURN_IF_ERROR(
      loop->RunQuery([state, read = std::move(read)](const Machine& machine, absl::Time now) {
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

void CoordinatorService::Drain() { StopLoop(Stopping(), /*streams_first=*/false); }

// The store may keep the loop for a while, but members must look for the leader immediately. Calls
// end afterwards: a caller repeats one that was refused because this coordinator does not lead, so
// the loop must not carry it out any more.
void CoordinatorService::StandBy(const std::string& reason) {
  StopLoop(NotServingError(reason), /*streams_first=*/true);
}

// A call registers itself and reads `loop_` under one lock, so after the second part no call waits
// for a loop that has stopped.
void CoordinatorService::StopLoop(const absl::Status& status, bool streams_first) {
  std::shared_ptr<Loop> stopped;
  {
    absl::MutexLock lock(&mutex_);
    stopped = std::exchange(loop_, nullptr);
    not_serving_ = status;
    if (streams_first) {
      // The ends of the streams are no events any more.
      if (stopped != nullptr) stopped->Close();
      EndStreams(status);
    }
  }
  // The loop's callbacks take the lock. It handles what has been posted.
  if (stopped != nullptr) stopped->Stop();
  EndAll(status);
  if (stopped == nullptr) return;
  // It may still search plans, so it is destroyed later; the one before is destroyed here.
  absl::MutexLock lock(&mutex_);
  last_loop_.swap(stopped);
}

void CoordinatorService::EndStreams(const absl::Status& status) {
  for (auto& [id, stream] : streams_) stream->End(status);
  for (auto& [id, watch] : watches_) watch->End(status);
}

void CoordinatorService::EndAll(const absl::Status& status) {
  std::map<RequestId, Pending> pending;
  {
    absl::MutexLock lock(&mutex_);
    EndStreams(status);
    if (backup_ != nullptr) backup_->End(status);
    pending.swap(pending_);
  }
  for (auto& [id, one] : pending) one.call->Reply(status);
}

// ---- Calls

void CoordinatorService::Begin(UnaryCall& call, Fill fill,
                               const std::function<absl::Status(RequestId)>& post, bool traces) {
  RequestId id = 0;
  absl::Status posted;
  {
    absl::MutexLock lock(&mutex_);
    id = ++last_id_;
    if (!call.Keep([this, id, traces] { OnCancelled(id, traces); })) return;
    if (loop_ == nullptr) posted = not_serving_;
    if (pending_.size() >= kMaxCalls) posted = BusyError("too many calls are waiting");
    pending_[id] = {&call, std::move(fill)};
  }
  if (posted.ok()) posted = post(id);
  if (!posted.ok()) Finish(id, [&](const Fill&) { return posted; });
  if (!traces) return;
  {
    absl::MutexLock lock(&mutex_);
    if (pending_.contains(id)) return;
  }
  // It may have been cancelled before its event was posted.
  Post(CancelTrace{id}).IgnoreError();
}

void CoordinatorService::Request(UnaryCall& call, Fill fill,
                                 const std::function<Event(RequestId)>& make,
                                 const std::function<absl::Status()>& check) {
  Begin(call, std::move(fill), [&](RequestId id) -> absl::Status {
    CADRE_RETURN_IF_ERROR(check());
    return Post(make(id));
  });
}

absl::Status CoordinatorService::Post(Event event) {
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<Loop> loop, LoopOrReason());
  return loop->Post(std::move(event)) ? absl::OkStatus() : Stopping();
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
  pending.call->Reply(finish(pending.fill));
}

void CoordinatorService::OnCancelled(RequestId request, bool traces) {
  Finish(request, [](const Fill&) { return absl::CancelledError("cancelled by the caller"); });
  // The group can be traced by other calls now.
  if (traces) Post(CancelTrace{request}).IgnoreError();
}

absl::Status CoordinatorService::RunQuery(const std::string& peer, Loop::Query query) {
  CADRE_ASSIGN_OR_RETURN(const std::shared_ptr<Loop> loop, LoopOrReason());
  // The query has the slot as long as it exists.
  const auto slot = std::make_shared<StreamSlots::Slot>(query_slots_.Take(peer));
  if (!slot->taken()) return BusyError("too many queries are waiting");
  return loop->RunQuery([slot, query = std::move(query)](const Machine& machine, absl::Time now) {
    query(machine, now);
  });
}

void CoordinatorService::Query(UnaryCall& call,
                               std::function<absl::Status(const Machine&, absl::Time)> read) {
  Begin(call, nullptr, [&](RequestId id) {
    return RunQuery(call.peer(),
                    [this, id, read = std::move(read)](const Machine& machine, absl::Time now) {
                      Finish(id, [&](const Fill&) { return read(machine, now); });
                    });
  });
}

RequestStream* CoordinatorService::Watch(grpc::CallbackServerContext* context) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = ++last_id_;
  return new WatchStream(
      Shared(), context, [this, id](WatchStream& stream) { BeginWatch(id, stream); },
      [this, id] {
        absl::MutexLock done(&mutex_);
        watches_.erase(id);
      });
}

void CoordinatorService::BeginWatch(uint64_t id, WatchStream& stream) {
  StreamSlots::Slot slot = watch_slots_.Take(stream.peer());
  if (!slot.taken()) return stream.End(BusyError("too many Watch calls"));
  stream.Keep(std::move(slot));
  {
    absl::MutexLock lock(&mutex_);
    if (loop_ == nullptr) return stream.End(not_serving_);
    watches_[id] = &stream;
  }
  const absl::Status woken = RunQuery(stream.peer(), [](const Machine&, absl::Time) {});
  if (!woken.ok()) stream.End(woken);
}

RequestStream* CoordinatorService::Backup(grpc::CallbackServerContext* context) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = ++last_id_;
  return new BackupStream(
      Shared(), context, [this, id](BackupStream& stream) { BeginBackup(id, stream); },
      [this, id] {
        absl::MutexLock done(&mutex_);
        if (backup_id_ == id) backup_ = nullptr;
      });
}

void CoordinatorService::BeginBackup(uint64_t id, BackupStream& stream) {
  std::shared_ptr<Loop> loop;
  {
    absl::MutexLock lock(&mutex_);
    loop = loop_;
    if (loop == nullptr) return stream.End(not_serving_);
    if (backup_path_.empty()) {
      return stream.End(absl::UnimplementedError("the store cannot be copied"));
    }
    if (backup_ != nullptr && !backup_->ended()) {
      return stream.End(absl::ResourceExhaustedError("another backup is in progress"));
    }
    backup_ = &stream;
    backup_id_ = id;
  }
  const absl::Status queued =
      loop->RunQuery([this, id](const Machine&, absl::Time) { PrepareBackup(id); });
  if (!queued.ok()) stream.End(queued);
}

void CoordinatorService::PrepareBackup(uint64_t id) {
  // The caller may cancel at any time, and another one may have begun a backup since.
  const auto awaited = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return backup_ != nullptr && backup_id_ == id && !backup_->ended();
  };
  std::string path;
  {
    absl::MutexLock lock(&mutex_);
    if (!awaited()) return;
    path = backup_path_;
  }
  const absl::Status written = WriteBackup(*store_, path);
  if (!written.ok()) LOG(ERROR) << "backup: " << written;
  absl::MutexLock lock(&mutex_);
  if (!awaited()) {
    RemoveBackup(path);
  } else if (written.ok()) {
    backup_->Send(path);
  } else {
    backup_->End(written);
  }
}

// ---- Streams

StreamReactor* CoordinatorService::Join(grpc::CallbackServerContext* context) {
  const absl::StatusOr<std::optional<Identity>> caller = CallerIdentity(*context->auth_context());
  JoinStream* stream = nullptr;
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (loop_ == nullptr) refused = not_serving_;
    const ConnectionId connection = ++last_id_;
    stream = new JoinStream(
        connection, caller.value_or(std::nullopt),
        [loop = loop_](Event event) { return loop != nullptr && loop->Post(std::move(event)); },
        open_streams_, context,
        [this, connection] {
          absl::MutexLock done(&mutex_);
          streams_.erase(connection);
        });
    streams_[connection] = stream;
  }
  if (!caller.ok()) {
    stream->End(caller.status());
  } else if (!refused.ok()) {
    stream->End(refused);
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

void CoordinatorService::OnBegunAgain() {
  EndAll(absl::UnavailableError("the coordinator begins again in a higher epoch"));
  // The revisions of runs are counted anew.
  updates_ = RunUpdates();
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
