// The coordinator's gRPC services around its loop: members' streams, runs, status.
//
// No call holds a thread while it waits. Thread-safe.
//
//   CoordinatorService service(options);
//   CADRE_RETURN_IF_ERROR(service.Start(&store, &clock));
//   auto daemon = Daemon::Start(daemon_options, service.services());
//   ...
//   service.Drain();                 // handles queued events, then ends every stream
//   daemon->Drain(absl::Seconds(3));
#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "coordinator/join_stream.h"
#include "coordinator/loop.h"
#include "coordinator/watch_stream.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/membership.grpc.pb.h"

namespace cadre {

class CoordinatorService final : public JoinStream::Host, public Loop::Callbacks {
 public:
  struct Options {
    Loop::Options loop;
    // Limit of messages waiting to be written to one member.
    size_t stream_capacity = 1024;
    // Limit of concurrent Watch and Wait calls, each.
    size_t max_waiters = 1024;
  };

  explicit CoordinatorService(Options options);
  ~CoordinatorService() override;

  // Restores the state from the store and starts the loop; earlier calls are Unavailable. `store`
  // and `clock` are borrowed and must outlive the service.
  absl::Status Start(Store* store, const Clock* clock);

  // The services for one server, which must be shut down before this object is destroyed.
  std::vector<grpc::Service*> services();

  // Handles all queued events, ends the loop, then ends every stream and waiting call with
  // Unavailable.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);

  // JoinStream::Host
  bool OnStreamEvent(Event event) override;
  void OnStreamDone(ConnectionId connection) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Loop::Outlet
  void OnSend(ConnectionId connection, const v1::CoordinatorMessage& message) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDisconnect(ConnectionId connection, const absl::Status& status) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReplied(const Replied& replied) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTraceAnswered(const TraceAnswered& answered) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time OnSettled(const Machine& machine, absl::Time now) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class MembershipService;
  class RunsService;
  class StatusService;
  class Call;

  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Join();
  grpc::ServerUnaryReactor* Submit(const v1::SubmitRequest* request, v1::SubmitReply* reply);
  grpc::ServerUnaryReactor* Stop(const v1::StopRequest* request);
  grpc::ServerUnaryReactor* Wait(const v1::WaitRequest* request, v1::WaitReply* reply);
  grpc::ServerUnaryReactor* Trace(const v1::TraceRequest* request, v1::TraceReply* reply);
  grpc::ServerWriteReactor<v1::WatchUpdate>* Watch(const v1::WatchRequest* request);
  // A call that reads the machine and is answered immediately.
  grpc::ServerUnaryReactor* Query(std::function<absl::Status(const Machine&, absl::Time)> look);

  // Registers a call. It ends by Finish with its id, by Drain, or by cancellation.
  Call* NewCall() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `fill`, which may write the reply, and finishes the call, unless it has ended.
  void Finish(RequestId request, const std::function<absl::Status()>& fill)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller has cancelled the call.
  void OnCancelled(RequestId request) ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerWaits(const Machine& machine, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Waiting {
    std::string run;
    v1::WaitReply* reply = nullptr;
  };

  const Options options_;
  const std::unique_ptr<MembershipService> membership_;
  const std::unique_ptr<RunsService> runs_;
  const std::unique_ptr<StatusService> status_;
  std::unique_ptr<Loop> loop_;

  absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<ConnectionId, JoinStream*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, Call*> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, v1::SubmitReply*> submits_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, Waiting> waits_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestId, v1::TraceReply*> traces_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, WatchStream*> watches_ ABSL_GUARDED_BY(mutex_);
  // Source of unique lineages.
  std::random_device entropy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
