// A worker: a member of the cluster (member/group_member.h) that trains with a compute device of
// its own.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/hardware.h"
#include "base/rooted_files.h"
#include "base/rpc/credentials.h"
#include "member/group_member.h"
#include "worker/compute.h"

namespace cadre {

struct WorkerOptions {
  // Files that a run may name in `data` and in `checkpoint`.
  RootedFiles data_files = RootedFiles::Unrestricted();
  RootedFiles checkpoint_files = RootedFiles::Unrestricted();
  // host:port of the coordinator.
  std::string coordinator;
  // Credentials for the channels to the coordinator and the aggregators.
  Credentials credentials = Credentials::Insecure();
  // Time limit for reaching it at the start.
  absl::Duration dial_timeout = absl::Seconds(30);
  // Address at which the other ranks of a group connect; port 0 selects a free port.
  std::string listen = "127.0.0.1:0";
  // The address that is sent to them; empty: `listen` with the selected port.
  std::string advertise;
  // For display; need not be unique.
  std::string name;
  // Version of the program, for messages about mismatching builds.
  std::string version;
  // Cores of the host, which all its workers share.
  int host_cores = UsableCores();
  // Creates the device to compute on, at the start and after it has failed.
  std::function<absl::StatusOr<std::unique_ptr<Compute>>()> make_compute;
  // Whether to connect to ranks on this host through shared memory.
  bool shared_memory = true;
  // Number of TCP connections per channel (transport.h) to a rank on another host, at most
  // kMaxConnections; 0: chosen by the round-trip time.
  int tcp_connections = 0;
  // Threads that read and decode samples, at least 1.
  int loader_threads = 1;
  // An exchange with a shard ends after this time without progress.
  absl::Duration exchange_silence = absl::Seconds(90);
  // Whether the worker ends with the run for which it was started.
  bool exit_when_done = false;
  // Ends the process, as SIGTERM does. Called from a thread of the worker when it can no longer
  // train, see end(), when it may leave after Drain, once when the coordinator drains it, and, with
  // `exit_when_done`, when a run has ended. Optional.
  std::function<void()> ended;
};

class Worker {
 public:
  // As GroupMember::Start; also the errors of make_compute.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerOptions& options);

  // As the methods of GroupMember.
  bool Drain(absl::Duration within) { return member_->Drain(within); }
  std::optional<absl::Duration> drain_time() const { return member_->drain_time(); }
  bool has_rank() const { return member_->has_rank(); }
  absl::Status end() { return member_->end(); }
  std::optional<bool> run_done() const { return member_->run_done(); }
  absl::Status Ready() { return member_->Ready(); }
  void Collect(Metrics& metrics) { member_->Collect(metrics); }

 private:
  explicit Worker(std::unique_ptr<GroupMember> member) : member_(std::move(member)) {}

  const std::unique_ptr<GroupMember> member_;
};

}  // namespace cadre
