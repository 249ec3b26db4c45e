// A whole cluster on this machine: a coordinator, aggregators and workers as child processes that
// find one another through loopback ports the kernel picks.
//
// Owns the processes; none outlives it, nor the thread that started it (cli/process.h).
// Thread-compatible; Start and Supervise on one and the same long-lived thread.
//
//   CADRE_ASSIGN_OR_RETURN(auto cluster, LocalCluster::Start(options));
//   while (...) CADRE_RETURN_IF_ERROR(cluster->Supervise());
//   cluster->Shutdown();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/process.h"

namespace cadre {

struct LocalClusterOptions {
  // Folder that holds cadre-coordinator, cadre-aggregator and cadre-worker.
  std::string programs;
  // Takes store, data and logs; must be there.
  std::string folder;
  uint32_t workers = 1;
  uint32_t aggregators = 1;
  // Compute threads of one worker.
  uint32_t threads = 1;
  // What workers compute on, as cadre-worker --device says it. Those that share a GPU get a name
  // each, under which NCCL takes them for different machines: it refuses two ranks on one.
  std::string device = "cpu";
  // A member that was not heard of for so long is taken for lost.
  absl::Duration lease = absl::Seconds(5);
  // Start processes again that die; otherwise their death is an error.
  bool restart = true;
  // How often one process is started again before the cluster is given up.
  int most_restarts = 10;
  // Told what happens to processes, in plain words. Optional.
  std::function<void(absl::string_view)> note;
  // Asked now and then while Shutdown waits: true kills what is left at once. Optional.
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
  // Where the processes' logs are.
  std::string logs() const { return options_.folder + "/logs"; }

  // Reaps processes that died and starts them again: the coordinator on its port and store, an
  // aggregator with its name and data, a worker as a new one. Call it a few times a second.
  // Errors: Aborted, with the last lines of the log, when a process ended for good (bad flags, a
  // permanent failure), or died too often, or restart is off.
  absl::Status Supervise();

  // Workers first, the coordinator last; each gets SIGTERM and a few seconds, then SIGKILL.
  // Idempotent.
  void Shutdown();

 private:
  // One process and how to start it again.
  struct Member {
    std::string name;
    std::string program;
    std::vector<std::string> arguments;
    std::vector<std::string> environment;
    int restarts = 0;
    // Empty once it is shut down.
    std::vector<Process> process;
  };

  explicit LocalCluster(LocalClusterOptions options) : options_(std::move(options)) {}

  absl::Status StartCoordinator();
  absl::Status StartAggregators();
  absl::Status StartWorkers();
  absl::Status AddMember(Member member);
  absl::Status StartMember(Member& member);
  // Mends one member if it has ended.
  absl::Status Mend(Member& member);
  absl::Status WaitForPort(Member& coordinator, const std::string& port_file);
  std::string LogOf(const Member& member) const;
  // Ends members [begin, end) together.
  void End(size_t begin, size_t end);
  void Note(absl::string_view line) const;

  const LocalClusterOptions options_;
  std::string coordinator_;
  // The coordinator, then the aggregators, then the workers.
  std::vector<Member> members_;
};

}  // namespace cadre
