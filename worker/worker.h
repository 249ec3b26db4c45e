// A worker: joins the coordinator, takes the places it is given, trains in them.
//
// Three threads: the membership client's (hears the coordinator, never blocks), the runner (trains,
// one generation after the other), and the caller's. The assignment machine decides; this class
// carries out what it says.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "coordinator/client/membership_client.h"
#include "worker/assignment.h"
#include "worker/compute.h"
#include "worker/group_session.h"
#include "worker/train/link_cache.h"
#include "worker/train/trainer.h"
#include "worker/transport/tcp_listener.h"

namespace cadre {

struct WorkerOptions {
  // host:port of the coordinator.
  std::string coordinator;
  // How long to try to reach it at first.
  absl::Duration dial_timeout = absl::Seconds(30);
  // Where the other ranks of a group connect; port 0 takes a free one.
  std::string listen = "127.0.0.1:0";
  // The address that they are told; empty: `listen` with the port actually taken.
  std::string advertise;
  // For people; need not be unique.
  std::string name;
  // Version of the program, for messages about builds that do not match.
  std::string version;
  // What it computes on.
  ComputeOptions compute;
  // Makes that, at the start and after a device has failed. Null: MakeCompute(compute).
  std::function<absl::StatusOr<std::unique_ptr<Compute>>()> make_compute;
  // Whether ranks of this host are reached through shared memory.
  bool shared_memory = true;
  // TCP connections of each channel to a rank elsewhere, at most kMaxConnections; 0: as many as the
  // round trip asks for.
  int tcp_lanes = 0;
  // Called once, from a thread of the worker, when it cannot train any more; see end(). Optional.
  std::function<void()> ended;
};

class Worker {
 public:
  // Joined when it returns. Errors: Unavailable when no coordinator answers, FailedPrecondition
  // when it refuses, AlreadyExists for a taken port.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerOptions& options);

  // Leaves: says Goodbye, ends the training under way.
  ~Worker();

  // Not OK: the device failed, this process cannot have one again, and nothing will be trained any
  // more. Another process, here or elsewhere, may do better; not here where it is a
  // FailedPrecondition.
  absl::Status end() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit Worker(const WorkerOptions& options);

  absl::Status Join();
  v1::Hello MakeHello() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnConnection(bool connected) ABSL_LOCKS_EXCLUDED(mutex_);
  // Carries out what the machine decided. Called with the lock, so that words leave in the order in
  // which they were decided.
  void Do(AssignmentMachine::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const v1::MemberMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<GroupSession> MakeSession(const v1::Assignment& assignment);
  template <typename T>
  std::function<void(const T&)> Teller();

  bool Connected() ABSL_LOCKS_EXCLUDED(mutex_);

  // The runner thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Train(GroupSession& session) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<Compute>> NewCompute() const;
  // Tells the coordinator how a training ended that it did not end itself.
  void Report(GroupSession& session, const TrainerOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // A device that has failed does nothing any more; a group that dies around one fails it, too.
  // False: there is no other.
  bool RenewDevice(const absl::Status& failed) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasSessionOrStopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_ != nullptr || stopping_;
  }

  const WorkerOptions options_;
  const std::string incarnation_;
  LinkCache links_;
  Counters counters_;
  // Counts as long as it lives.
  std::unique_ptr<TcpListener> listener_;
  // Of the runner's thread once it runs. Null after a device was lost.
  std::unique_ptr<Compute> compute_;
  // Of compute_, for the coordinator.
  std::string device_name_;
  uint64_t memory_bytes_ = 0;

  absl::Mutex mutex_;
  AssignmentMachine machine_ ABSL_GUARDED_BY(mutex_);
  // Sessions are shared between the membership thread, which delivers, and the runner, which trains
  // in them; the last one to let go frees them.
  std::shared_ptr<GroupSession> waiting_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GroupSession> current_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  // Null until joined; callbacks may run before.
  MembershipClient* outlet_ ABSL_GUARDED_BY(mutex_) = nullptr;

  std::unique_ptr<MembershipClient> membership_;
  std::thread runner_;
};

}  // namespace cadre
