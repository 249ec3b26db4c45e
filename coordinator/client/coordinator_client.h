// What people's commands ask of the coordinator: runs and status.
//
// Thread-safe. Every call has a deadline; Unavailable means that no coordinator answered.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

class CoordinatorClient {
 public:
  struct Options {
    // host:port of the coordinator.
    std::string coordinator;
    // Limit of every call that answers at once.
    absl::Duration timeout = absl::Seconds(10);
    // How long a call waits for a coordinator that cannot be reached (it may be starting again).
    absl::Duration dial_timeout = absl::Seconds(5);
  };

  explicit CoordinatorClient(Options options);

  // Returns the id of the new run.
  // Errors: InvalidArgument names the field; FailedPrecondition for another schema.
  absl::StatusOr<std::string> Submit(const v1::RunSpec& spec) const;

  // Errors: NotFound for an unknown run.
  absl::Status Stop(const std::string& run, const std::string& reason) const;

  absl::StatusOr<v1::ListReply> List() const;

  // Answers when the run has ended. Errors: DeadlineExceeded; NotFound.
  absl::StatusOr<v1::RunStatus> Wait(const std::string& run, absl::Time deadline) const;

  // Of one run, or of all when `run` is empty.
  absl::StatusOr<v1::StatusReply> Status(const std::string& run = "") const;

  // Has every rank of the group trace its next steps and waits for that.
  // Errors: NotFound for an unknown run or group; FailedPrecondition when the group does not train;
  // Aborted when it ended meanwhile; ResourceExhausted while somebody else traces it;
  // InvalidArgument for too many steps; DeadlineExceeded.
  absl::StatusOr<v1::TraceReply> Trace(const std::string& run, uint32_t group, uint32_t steps,
                                       absl::Time deadline) const;

  // Calls `on_update` on the calling thread for every update until it returns false, the run ends
  // (OK), the deadline passes (DeadlineExceeded) or the stream breaks (Unavailable).
  absl::Status Watch(const std::string& run, absl::Time deadline,
                     const std::function<bool(const v1::WatchUpdate&)>& on_update) const;

 private:
  // Waits for the connection, at most dial_timeout.
  absl::Status Dial(absl::Time deadline) const;

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Runs::Stub> runs_;
  const std::unique_ptr<v1::Status::Stub> status_;
};

}  // namespace cadre
