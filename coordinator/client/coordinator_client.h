// Client of the coordinator's services for commands: runs, status and members.
//
// Thread-safe. Every call has a deadline; Unavailable means that no coordinator answered.
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/rpc/credentials.h"
#include "base/status.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

class CoordinatorClient {
 public:
  struct Options {
    // host:port of the coordinator, or of several, separated by commas, of which one leads.
    std::string coordinator;
    Credentials credentials = Credentials::Insecure();
    // Time limit of calls that do not wait for a run or group.
    absl::Duration timeout = absl::Seconds(10);
    // How long a call waits for a coordinator that cannot be reached (it may be restarting).
    absl::Duration dial_timeout = absl::Seconds(5);
  };

  explicit CoordinatorClient(Options options);

  // Makes any unary call, such as Call(&v1::Runs::Stub::Resume, request); its errors are in
  // control.proto. Without a deadline, Options::timeout is its limit.
  template <typename Stub, typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Reply*),
                             const Request& request,
                             std::optional<absl::Time> deadline = std::nullopt) const {
    Reply reply;
    CADRE_RETURN_IF_ERROR(Attempt(deadline.value_or(absl::Now() + options_.timeout),
                                  [&](grpc::ClientContext* context) {
                                    return (stub<Stub>().*method)(context, request, &reply);
                                  }));
    return reply;
  }

  // Calls that are made at several places, several calls for one answer, and streams:

  // Returns the id of the new run.
  // Errors: InvalidArgument names the field; FailedPrecondition for an incompatible protocol.
  absl::StatusOr<std::string> Submit(const v1::RunSpec& spec) const;
  // The same, unless a run of this name has not ended or, with `join_ended`, has reached its end:
  // then the answer names that run. Further errors: FailedPrecondition if it has another spec, or
  // has failed or was stopped.
  absl::StatusOr<v1::SubmitReply> Join(const v1::RunSpec& spec, bool join_ended) const;

  // Where a call takes a run, its name may stand for its id: the newest run of the name that has
  // not ended or, if all have ended, the newest one. Stop and Delete fail with FailedPrecondition
  // if they might mean several runs.

  // Errors: NotFound for an unknown run.
  absl::Status Stop(const std::string& run, const std::string& reason) const;

  // Receives a copy of the coordinator's store; passes every chunk to `on_chunk` until it fails.
  // Errors: those of on_chunk; DataLoss if the copy is not complete.
  absl::Status Backup(absl::Time deadline,
                      const std::function<absl::Status(const v1::BackupChunk&)>& on_chunk) const;

  absl::StatusOr<v1::ListReply> List() const;

  // Status of one run, or of all if `run` is empty: all pages. `details`: with plans and with what
  // every rank holds.
  absl::StatusOr<v1::StatusReply> Status(const std::string& run = "", bool details = true) const;

  // A version of the run, by default the newest, and where its values are. Errors: NotFound for an
  // unknown run; FailedPrecondition for a run without versions, or a version that is not kept.
  absl::StatusOr<v1::LocateReply> Locate(const std::string& run,
                                         std::optional<uint32_t> version = std::nullopt) const;

  // Makes every rank of the group trace its next steps; returns the traces.
  // Errors: NotFound for an unknown run or group; FailedPrecondition if the group does not train;
  // Aborted if the group ended meanwhile; ResourceExhausted if another trace of the group is in
  // progress; InvalidArgument for too many steps; DeadlineExceeded.
  absl::StatusOr<v1::TraceReply> Trace(const std::string& run, uint32_t group, uint32_t steps,
                                       absl::Time deadline) const;

  // Excludes workers from new work (kDrain: they also leave their groups and end, `within` this
  // time if it is not zero), or ends that and clears their records of failures. `member` is a
  // member id, the name of a worker or a host. Returns the ids of the workers that matched.
  // Errors: NotFound; InvalidArgument if an aggregator is to be drained within a time;
  // FailedPrecondition if no other aggregator could take its shards.
  enum class CordonMode { kCordon, kUndo, kDrain };
  absl::StatusOr<v1::CordonReply> Cordon(const std::string& member, CordonMode mode,
                                         absl::Duration within = absl::ZeroDuration()) const;

  // Calls `on_update` on the calling thread for every update, until `on_update` returns false, the
  // run ends (OK), the deadline passes (DeadlineExceeded) or the stream breaks (Unavailable).
  absl::Status Watch(const std::string& run, absl::Time deadline,
                     const std::function<bool(const v1::WatchUpdate&)>& on_update) const;

 private:
  // A coordinator.
  struct Server {
    std::shared_ptr<grpc::Channel> channel;
    std::tuple<std::unique_ptr<v1::Runs::Stub>, std::unique_ptr<v1::Status::Stub>,
               std::unique_ptr<v1::Members::Stub>>
        stubs;
  };

  static std::vector<Server> ServersOf(const Options& options);
  template <typename Stub>
  Stub& stub() const {
    return *std::get<std::unique_ptr<Stub>>(servers_[current_].stubs);
  }
  // Waits for a connection to one of the coordinators, until this time, beginning with the current
  // one.
  absl::Status Dial(absl::Time until) const;
  // Calls `call` until a coordinator leads, within dial_timeout, and is not too busy for it.
  absl::Status Attempt(absl::Time deadline,
                       absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call) const;

  const Options options_;
  const std::vector<Server> servers_;
  // The one that is called.
  mutable std::atomic<size_t> current_ = 0;
};

}  // namespace cadre
