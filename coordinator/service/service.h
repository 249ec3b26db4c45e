// The coordinator's gRPC services: members' streams, runs and status. They post events to the loop
// (coordinator/service/loop.h) and send its answers.
//
// No call holds a thread while it waits. Thread-safe.
//
//   CoordinatorService service(options);
//   CADRE_RETURN_IF_ERROR(service.Start(&store));   // until StandBy; a standby refuses calls
//   auto daemon = Daemon::Start(daemon_options, service.services());
//   ...
//   service.Drain();                 // handles queued events, then ends every stream
//   daemon->Drain(absl::Seconds(3));
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/log_limit.h"
#include "base/rpc/credentials.h"
#include "base/rpc/stream_limits.h"
#include "base/stream_slots.h"
#include "coordinator/service/backup.h"
#include "coordinator/service/loop.h"
#include "coordinator/service/request_stream.h"
#include "coordinator/service/streams.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/membership.grpc.pb.h"

namespace cadre {

// Submissions are parsed if they then take at most this much, as the largest spec does.
inline constexpr int64_t kMaxSubmitMemory = 64 << 20;

class CoordinatorService final
    : public v1::Membership::WithRawCallbackMethod_Join<v1::Membership::Service>,
      public Loop::Callbacks {
 public:
  // `credentials`: those of its server; the status shows how long they are valid.
  explicit CoordinatorService(Loop::Options options, Credentials credentials = {});
  ~CoordinatorService() override { Drain(); }

  // Restores the state from the store and starts the loop; earlier calls are Unavailable. `store`
  // is borrowed and must outlive the service, or the next call of StandBy. `backup_path`: a file
  // for a backup while it is sent. Requires: the service stands by, as it does at first. Errors:
  // those of Loop::Start.
  absl::Status Start(Store* store, std::string backup_path = "");
  // Ends every stream, then the loop and every waiting call, and refuses further ones, with a
  // NotServingError of this reason.
  void StandBy(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why the loop has failed since Start; it must then stand by.
  absl::Status failure() const ABSL_LOCKS_EXCLUDED(mutex_);

  // This service and those of calls (calls.cc) for one server, which must be shut down before the
  // object is destroyed.
  std::vector<grpc::Service*> services();

  // Handles all queued events, ends the loop, then ends every stream and waiting call with
  // Unavailable.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `read` on the loop's thread once the state is durable, and waits for it. Errors, after
  // which it will not run or has no effect on the caller: Unavailable, a BusyError,
  // DeadlineExceeded.
  absl::Status Read(std::function<void(const Machine&, absl::Time)> read, absl::Duration timeout);
  // Null while the service stands by.
  std::shared_ptr<Loop> loop() const ABSL_LOCKS_EXCLUDED(mutex_);

  // v1::Membership
  StreamReactor* Join(grpc::CallbackServerContext* context) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Loop::Callbacks
  void OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDisconnect(ConnectionId connection, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReplied(const Replied& replied) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnHandled(ConnectionId connection) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnBegunAgain() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time OnSettled(const Machine& machine, absl::Time now) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // v1::Runs, v1::Status and v1::Members, in calls.cc.
  template <typename Declared>
  class CallService;
  class Runs;
  class Status;
  class Members;

  static std::vector<std::unique_ptr<grpc::Service>> MakeCallServices(CoordinatorService& service);

  // Writes the reply of a call from the loop's answer. Null: the reply has no fields.
  using Fill = std::function<void(const Replied& replied)>;
  // A call that is not finished.
  struct Pending {
    UnaryCall* call = nullptr;
    Fill fill;
  };

  // Registers a call, unless it was cancelled, and posts its event or query to the loop. The call
  // ends with the error of `post`, by Finish with its id, by Drain, or by cancellation.
  // `traces`: its event is a TraceGroup, which is cancelled with the call.
  void Begin(UnaryCall& call, Fill fill, const std::function<absl::Status(RequestId)>& post,
             bool traces = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins a call that posts one event, unless `check` fails.
  void Request(UnaryCall& call, Fill fill, const std::function<Event(RequestId)>& make,
               const std::function<absl::Status()>& check = absl::OkStatus);
  // Errors: Unavailable if there is no loop.
  absl::Status Post(Event event) ABSL_LOCKS_EXCLUDED(mutex_);
  // The loop, or why there is none.
  absl::StatusOr<std::shared_ptr<Loop>> LoopOrReason() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the loop, after the streams of members and watchers or before them; later calls are
  // refused with this status.
  void StopLoop(const absl::Status& status, bool streams_first) ABSL_LOCKS_EXCLUDED(mutex_);
  RequestStream::Shared Shared() { return {request_turns_, open_streams_}; }
  // The streams of these calls.
  RequestStream* Watch(grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mutex_);
  RequestStream* Backup(grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends updates until the stream ends.
  void BeginWatch(uint64_t id, WatchStream& stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginBackup(uint64_t id, BackupStream& stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins a call that only reads the state machine and is answered without waiting for an event.
  void Query(UnaryCall& call, std::function<absl::Status(const Machine&, absl::Time)> read);
  // Runs a query on the loop's thread. Of those that wait, one peer may have three quarters.
  // Errors: those of Loop::RunQuery.
  absl::Status RunQuery(const std::string& peer, Loop::Query query);
  // Finishes the call with the result of `finish`, which may write the reply, unless it has ended.
  void Finish(RequestId request, absl::FunctionRef<absl::Status(const Fill& fill)> finish)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller has cancelled the call.
  void OnCancelled(RequestId request, bool traces) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the streams of members and watchers.
  void EndStreams(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends all streams and waiting calls. Requires: the loop has stopped.
  void EndAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes the file of this backup if it is in progress; on the loop's thread.
  void PrepareBackup(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  const Loop::Options options_;
  const Credentials credentials_;
  const std::vector<std::unique_ptr<grpc::Service>> call_services_;
  // Set by Start, before the loop's thread exists.
  Store* store_ = nullptr;
  RequestTurns request_turns_;
  // Limits on queries that wait for the loop, and on Watch streams.
  StreamSlots query_slots_;
  StreamSlots watch_slots_;

  mutable absl::Mutex mutex_;
  // Null while the service stands by. Streams keep the loop of their time, which may have stopped.
  std::shared_ptr<Loop> loop_ ABSL_GUARDED_BY(mutex_);
  std::string backup_path_ ABSL_GUARDED_BY(mutex_);
  // The loop that has stopped last.
  std::shared_ptr<Loop> last_loop_ ABSL_GUARDED_BY(mutex_);
  // Why there is no loop, and why the last one has failed.
  absl::Status not_serving_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, JoinStream*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, WatchStream*> watches_ ABSL_GUARDED_BY(mutex_);
  // Used by the loop's thread only.
  RunUpdates updates_;
  // Used by the loop's thread only.
  LogLimit ended_log_;
  // The newest backup while its stream exists, and its number.
  BackupStream* backup_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t backup_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Declared last: all streams end before the objects that they use.
  OpenStreams open_streams_;
};

}  // namespace cadre
