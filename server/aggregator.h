// The aggregator: its shards on disk, the Rounds service, and its membership of the cluster.
//
//   CADRE_ASSIGN_OR_RETURN(auto aggregator, Aggregator::Start(options));
//   WaitForTermination();
//   aggregator->Drain(absl::Seconds(3));
//
// A pool of threads executes the coordinator's orders (OpenRun, Apply, CloseRun, CopyShard), those
// of one run one after another, so that a disk that hangs in one run stops no other. Keys and
// fences take effect when they arrive. An order that fails for a transient reason (a full disk) is
// retried until it succeeds or the run is closed, and so is an Apply whose contributions are
// incomplete, which each attempt reports (Applied.missing); heartbeats report these orders with
// their reasons, and those that take long. A permanent failure, and any failure to create a shard,
// is reported in the answer (error). The coordinator repeats orders whose answer was lost with a
// stream.
//
// The files of runs that have not ended are verified after the start, before the aggregator joins:
// until then it is away for the coordinator, but listens, and says how far it is.
//
// Thread-safe after Start.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/counters.h"
#include "base/http/metrics.h"
#include "base/rooted_files.h"
#include "base/rpc/daemon.h"
#include "base/steady_cond_var.h"
#include "coordinator/client/membership_client.h"
#include "proto/cadre/v1/membership.pb.h"
#include "server/client/copy_client.h"
#include "server/order_queue.h"
#include "server/service.h"
#include "server/shard_host.h"

namespace cadre {

struct AggregatorOptions {
  // The server; Start sets its limits. The channel to the coordinator has its credentials.
  DaemonOptions server;
  // Address at which workers reach it; empty: the listen address with the selected port.
  std::string advertise;
  // host:port of the coordinator.
  std::string coordinator;
  std::string data_dir;
  // Identity of the aggregator across restarts.
  std::string name;
  // Program version, for messages.
  std::string version;
  absl::Duration dial_timeout = absl::Seconds(30);
  OrderQueue::Options orders;
  // Keeps the contributions of which versions are made (server/archive.h).
  bool archive = false;
  // Checkpoints from which runs may start.
  RootedFiles checkpoint_files = RootedFiles::Unrestricted();
  RoundsServiceOptions service;
  // Called from a thread of the aggregator when it can no longer serve, see end(). Optional.
  std::function<void()> ended;
  // How long Drain may take.
  absl::Duration drain_limit = absl::Seconds(45);
  // Called from a thread of the aggregator, with what does not end, when Drain takes longer. What
  // hangs on a disk cannot be interrupted, so this must end the process; without it, Drain waits.
  std::function<void(const std::string& unfinished)> cut_off;
};

class Aggregator {
 public:
  // Opens the data folder, listens, and joins the coordinator. If there are files of runs that have
  // not ended, a thread verifies them and joins then; its errors are those of end().
  // Errors: those of ShardStore::Open and Daemon::Start; Unavailable if no coordinator answered
  // within dial_timeout; PermissionDenied, with the reason, if the coordinator refused the join.
  static absl::StatusOr<std::unique_ptr<Aggregator>> Start(AggregatorOptions options);
  ~Aggregator();

  // Address of the server.
  const std::string& address() const { return daemon_->address(); }
  const Counters& counters() const { return counters_; }
  // Why the process must end. FailedPrecondition: the files were removed or damaged; another
  // process begins with what is left. PermissionDenied: the coordinator refuses this build.
  // ResourceExhausted: it cannot accept connections any more.
  absl::Status end() const ABSL_LOCKS_EXCLUDED(mutex_);

  // OK if the aggregator can serve: its files are verified and intact, and the coordinator is
  // connected.
  absl::Status Ready() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Collect(Metrics& metrics) const;

  // Finishes the orders that are being executed, gives streams at most `grace` to end, sends
  // Goodbye and stops listening. Calls AggregatorOptions::cut_off if this takes longer than
  // drain_limit.
  void Drain(absl::Duration grace);

 private:
  explicit Aggregator(AggregatorOptions options);

  absl::Status Join() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null until then.
  const MembershipClient* Joined() const ABSL_LOCKS_EXCLUDED(mutex_);
  v1::Hello MakeHello() const;
  // False: the queue of orders is full.
  bool OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Main function of the thread that verifies the files of one run after the other.
  void VerifyAndJoin() ABSL_LOCKS_EXCLUDED(mutex_);
  // If the error may pass, waits; false: it may not, or the process ends.
  bool WaitsToVerifyAgain(const std::string& run, const absl::Status& verified)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Main function of the threads that execute orders.
  void ExecuteOrders() ABSL_LOCKS_EXCLUDED(mutex_);
  // What Drain waits for.
  std::string Unfinished() const ABSL_LOCKS_EXCLUDED(mutex_);
  OrderResult Execute(const v1::CoordinatorMessage& order);
  // Waits for the next order. Returns nullopt when the aggregator drains.
  std::optional<v1::CoordinatorMessage> NextOrder() ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer(const v1::MemberMessage& message);

  const AggregatorOptions options_;
  const std::string incarnation_;
  Counters counters_;
  const SteadyClock clock_;
  mutable absl::Mutex mutex_;
  SteadyCondVar changed_;
  OrderQueue orders_ ABSL_GUARDED_BY(mutex_);
  // Why the coordinator refuses this aggregator.
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  // The last result of a verification.
  absl::Status verification_ ABSL_GUARDED_BY(mutex_);
  // Why the verification, or the join after it, has ended the process.
  absl::Status start_ ABSL_GUARDED_BY(mutex_);
  std::stop_source stop_;
  // As of the last order.
  std::atomic<uint64_t> reserved_bytes_ = 0;
  // Members are destroyed in reverse order: the daemon, then the service, then the host.
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<RoundsService> service_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<MembershipClient> membership_;
  CopyClient copy_client_;
  std::vector<std::thread> order_threads_;
  std::thread verifier_;
};

}  // namespace cadre
