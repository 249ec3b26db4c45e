// A cluster on this machine: a coordinator, aggregators and workers as child processes on loopback
// ports that the kernel picks.
//
// Owns the processes; they end with it, and with the thread that started them (cli/process.h).
// Thread-compatible; call Start and Supervise on one long-lived thread.
//
//   CADRE_ASSIGN_OR_RETURN(auto cluster, LocalCluster::Start(options));
//   while (...) CADRE_RETURN_IF_ERROR(cluster->Supervise());
//   cluster->Shutdown();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/numa.h"
#include "base/rpc/credentials.h"
#include "cli/process.h"

namespace cadre {

struct LocalClusterOptions {
  // Folder that holds cadre-coordinator, cadre-aggregator and cadre-worker.
  std::string programs;
  // Folder of store, data and logs; must exist.
  std::string folder;
  uint32_t workers = 1;
  uint32_t aggregators = 1;
  // Compute threads of one worker.
  uint32_t threads = 1;
  // NUMA nodes of this machine that workers on CPUs share, each bound to one.
  std::vector<NumaNode> numa_nodes;
  // Value of `cadre-worker --device`. NCCL refuses two ranks of one machine on one GPU, so each
  // worker gets its own host id.
  std::string device = "cpu";
  // Folders beneath which the run reads data, and reads and writes checkpoints; must exist.
  std::vector<std::string> data_roots;
  std::vector<std::string> checkpoint_roots;
  // Run without TLS. Otherwise the cluster has an authority of its own, and each process a
  // certificate, in folder/tls.
  bool insecure = false;
  // A member without a heartbeat for this long counts as lost.
  absl::Duration lease = absl::Seconds(5);
  // Restart processes that die; otherwise their death is an error.
  bool restart = true;
  // Maximum number of restarts of one process; after them the cluster fails.
  int max_restarts = 10;
  // Receives one line for each start or end of a process that the user should know. Optional.
  std::function<void(absl::string_view)> note;
  // Called repeatedly while Shutdown waits. If it returns true, the remaining processes are killed.
  // Optional.
  std::function<bool()> hurry;
};

class LocalCluster {
 public:
  // Returns once the coordinator listens and all processes are started.
  // Errors: NotFound for a missing program; Unavailable with the last line of its log when the
  // coordinator does not come up.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalClusterOptions options);
  ~LocalCluster();

  // host:port of the coordinator; stays the same when it is restarted.
  const std::string& coordinator() const { return coordinator_; }
  // Credentials of an operator of the cluster, and their folder; empty: insecure.
  const Credentials& credentials() const { return credentials_; }
  std::string tls() const { return options_.insecure ? "" : TlsOf("operator"); }
  // Folder of the processes' logs.
  std::string logs() const { return options_.folder + "/logs"; }

  // Reaps and restarts processes that died: the coordinator with its port and store, an aggregator
  // with its name and data, a worker as a new one. Call it a few times per second.
  // Errors: Aborted, with the last lines of the log, if a process failed permanently (bad flags, a
  // permanent error), exceeded max_restarts, or restart is off.
  absl::Status Supervise();

  // Stops workers first, the coordinator last: SIGTERM, and SIGKILL after a few seconds.
  // Idempotent.
  void Shutdown();

 private:
  // One process and how to restart it.
  struct Member {
    std::string name;
    std::string program;
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    int restarts = 0;
    // Empty once it is shut down.
    std::optional<Process> process;

    bool IsRunning() { return process && !process->Poll(); }
  };

  explicit LocalCluster(LocalClusterOptions options) : options_(std::move(options)) {}

  absl::Status MakeCertificates();
  // The folder of credentials of a member.
  std::string TlsOf(const std::string& name) const { return options_.folder + "/tls/" + name; }
  absl::Status StartCoordinator();
  absl::Status StartAggregators();
  absl::Status StartWorkers();
  // Starts the process and adds the member.
  absl::Status AddMember(Member member);
  absl::Status StartMember(Member& member);
  // Restarts the member if it has ended.
  absl::Status Check(Member& member);
  absl::Status WaitForPort(Member& coordinator, const std::string& port_file);
  std::string LogOf(const Member& member) const;
  // Ends members [begin, end) together.
  void End(size_t begin, size_t end);
  void Note(absl::string_view line) const;

  const LocalClusterOptions options_;
  Credentials credentials_;
  std::string coordinator_;
  // The coordinator, then the aggregators, then the workers.
  std::vector<Member> members_;
};

}  // namespace cadre
