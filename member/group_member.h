// A member of the cluster that trains: joins the coordinator, and trains in the rank slots that are
// assigned to it. A rank slot (v1::RankSlot) names a run, a group, its generation and a rank. What
// it trains with is a GenerationTrainer: the compute device of cadre-worker (worker/worker.h) or a
// program's own loop (group/caller_trainer.h).
//
// Three threads use it: the thread of the membership client receives messages and never blocks; the
// runner trains in one generation of a group after another; the caller starts and destroys it.
// AssignmentMachine (member/assignment.h) decides, and this class carries out its actions.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/hardware.h"
#include "base/http/metrics.h"
#include "base/rpc/credentials.h"
#include "comm/transport/tcp_listener.h"
#include "coordinator/client/membership_client.h"
#include "member/assignment.h"
#include "member/group_session.h"
#include "member/member_loop.h"
#include "member/session_slots.h"
#include "member/state_vault.h"
#include "member/thread_runtime.h"
#include "member/trainer_progress.h"

namespace cadre {

// Trains in one generation after another, on the runner's thread.
class GenerationTrainer {
 public:
  virtual ~GenerationTrainer() = default;

  // Fills in the fields of Hello about device, memory and reservation. Called from other threads.
  virtual void Describe(v1::Hello& hello) const = 0;
  struct Result {
    TrainerOutcome outcome;
    // Not OK: this process can no longer train. The outcome is then that of the failure.
    absl::Status end;
  };
  virtual Result Train(GroupSession& session, const MemberLoopOptions& options,
                       Counters& counters) = 0;
  // The run of the reservation has ended. Called on the membership thread; must not block.
  virtual void OnRunEnded(const v1::RunEnded& /*ended*/) {}
  // What the reservation's program waits for before its group is formed. As OnRunEnded.
  virtual void OnWaiting(const v1::Waiting& /*waiting*/) {}
};

class GroupMember final : private SessionOwner {
 public:
  // Time limit for the ranks of a group to connect. After it the group fails, and the coordinator
  // forms a new one.
  static constexpr absl::Duration kConnectTimeout = absl::Seconds(45);

  struct Options {
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
    // Cores of the host, which all its members share.
    int host_cores = UsableCores();
    // Whether to connect to ranks on this host through shared memory.
    bool shared_memory = true;
    // Number of TCP connections per channel (transport.h) to a rank on another host, at most
    // kMaxConnections; 0: chosen by the round-trip time.
    int tcp_connections = 0;
    // Threads that code and decode what is exchanged. Few of them use the bandwidth of the memory.
    int coding_threads = std::min(UsableCores(), 8);
    // An exchange with a shard ends after this time without progress.
    absl::Duration exchange_silence = absl::Seconds(90);
    // Whether the member ends with the run for which it was started.
    bool exit_when_done = false;
    // Set: it begins to leave by itself when the coordinator drains it, within this time unless the
    // coordinator names another.
    std::optional<absl::Duration> drains_within;
    // Called from a thread of the member when it can no longer train, see end(), when it may leave
    // after Drain, once when the coordinator drains it, unless it has `drains_within` and
    // something to finish, and, with `exit_when_done`, when a run has ended. Optional.
    std::function<void()> ended;
    // Makes the trainer, before the member joins.
    std::function<absl::StatusOr<std::unique_ptr<GenerationTrainer>>()> make_trainer;
  };

  // Returns when the member has joined. Errors: Unavailable if no coordinator responds;
  // FailedPrecondition if it refuses; AlreadyExists if the port is in use; those of make_trainer.
  static absl::StatusOr<std::unique_ptr<GroupMember>> Start(const Options& options);

  // Lets the member leave without losing steps: its group finishes the period or, if that takes
  // longer than half of `within`, after which this process ends, only its step; it contributes and
  // adopts the decided version, and then `ended` is called. False: there is nothing to finish.
  bool Drain(absl::Duration within) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is left of that time; nullopt: the member does not leave.
  std::optional<absl::Duration> leaves_within() const ABSL_LOCKS_EXCLUDED(mutex_);
  // With `exit_when_done`: whether the run that has ended was completed; nothing before its end.
  std::optional<bool> run_done() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the coordinator has ordered it to leave.
  bool drain_requested() const { return drain_requested_; }
  // The time that the order leaves; nullopt: it names none.
  std::optional<absl::Duration> drain_time() const {
    const double seconds = drain_seconds_;
    return seconds > 0 ? std::optional(absl::Seconds(seconds)) : std::nullopt;
  }
  // Whether the member has a rank in a run that goes on.
  bool has_rank() const ABSL_LOCKS_EXCLUDED(mutex_);

  // OK if the member can train: the coordinator is connected, and the device works.
  absl::Status Ready() ABSL_LOCKS_EXCLUDED(mutex_);
  void Collect(Metrics& metrics) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends Goodbye and cancels the current training.
  ~GroupMember() override;

  // Whether the coordinator can be reached.
  bool connected() const override ABSL_LOCKS_EXCLUDED(mutex_);
  // What the destructor reports to the coordinator.
  void set_stop_reason(std::string reason, bool finished = false) {
    stop_reason_ = std::move(reason);
    finished_ = finished;
  }

  // Not OK: the member no longer trains. PermissionDenied: the coordinator refuses this build.
  // Otherwise the device failed, and this process cannot create another one; a new process may
  // succeed, but if the status is FailedPrecondition, only on another host.
  absl::Status end() ABSL_LOCKS_EXCLUDED(mutex_);
  // If the member leaves: why its newest generation has ended before its boundary. OK: it has not,
  // or the run has ended.
  absl::Status released() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  explicit GroupMember(const Options& options);

  absl::Status Join();
  v1::Hello MakeHello() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::Heartbeat NextHeartbeat() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnConnection(bool connected) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first order to leave: for a program that waits for signals, a second one would end it
  // immediately.
  void OnDrain(const v1::Drain& drain) ABSL_LOCKS_EXCLUDED(mutex_);
  // Carries out the actions of machine_. Called with the lock held, so that messages are sent in
  // the order of decisions.
  void Do(const AssignmentMachine::Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const v1::MemberMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const TrainingReport& report) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnMayLeave() override {
    if (options_.ended) options_.ended();
  }

  // The runner thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  TrainerOutcome Train(GroupSession& session) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports how training has ended, unless the coordinator has cancelled it.
  void ReportOutcome(GroupSession& session, const TrainerOutcome& outcome)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasSessionOrStopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return sessions_.waits() || stopping_;
  }

  const Options options_;
  const std::string incarnation_;
  std::string stop_reason_ = "the worker was stopped";
  // As in Goodbye.
  bool finished_ = false;
  const SteadyClock steady_;
  // Used by the sessions and the runner.
  ThreadRuntime runtime_;
  // Used by the runner.
  StateVault states_;
  StateVault residuals_;
  Counters counters_;
  TrainerProgress progress_;
  // Adds to counters_.
  std::unique_ptr<TcpListener> listener_;
  // Used by the runner; Describe also by others.
  std::unique_ptr<GenerationTrainer> trainer_;

  mutable absl::Mutex mutex_;
  AssignmentMachine machine_ ABSL_GUARDED_BY(mutex_);
  // The session that the runner trains in next, and the one that it trains in. The membership
  // thread delivers messages to both.
  SessionSlots<GroupSession> sessions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // When the process ends, if the member leaves.
  std::optional<absl::Time> leaves_at_ ABSL_GUARDED_BY(mutex_);
  // Whether the coordinator has drained this member, and the seconds that it leaves.
  std::atomic<bool> drain_requested_ = false;
  std::atomic<double> drain_seconds_ = 0;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  absl::Status released_ ABSL_GUARDED_BY(mutex_);
  bool run_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<bool> run_done_ ABSL_GUARDED_BY(mutex_);
  // Null until joined; callbacks may run before.
  MembershipClient* client_ ABSL_GUARDED_BY(mutex_) = nullptr;

  std::unique_ptr<MembershipClient> membership_;
  std::thread runner_;
};

}  // namespace cadre
