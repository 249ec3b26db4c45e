// A cluster of real processes on loopback ports that the kernel picks, for tests that kill some.
//
// Owns the processes and a temporary folder; both are gone with it. Thread-compatible.
//
//   Cluster cluster({.lease = absl::Seconds(2)});
//   ASSERT_TRUE(cluster.StartCoordinator().ok());
//   cluster.StartAggregators(2); cluster.StartWorkers(4);
//   auto run = cluster.client().Submit(spec);
//   cluster.Kill("worker-1");
//   cluster.Await([](const v1::StatusReply& status) { return ...; }, absl::Seconds(20), "...");
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/process.h"
#include "coordinator/client/coordinator_client.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre::testing {

class Cluster {
 public:
  struct Options {
    // Silence after which a member is lost.
    absl::Duration lease = absl::Seconds(2);
  };

  Cluster() : Cluster(Options()) {}
  explicit Cluster(Options options);
  // Prints the ends of the logs if the test has failed.
  ~Cluster();

  // On a free port the first time, on the same port and store from then on.
  absl::Status StartCoordinator();
  // Under its name and folder; each time on another free port.
  absl::Status StartAggregator(const std::string& name);
  absl::Status StartWorker(const std::string& name);
  // A coordinator, "aggregator-0" .. and "worker-0" .. .
  absl::Status StartAll(int aggregators, int workers);

  // SIGKILL. Requires: it was started and not killed since.
  void Kill(const std::string& name);
  void Signal(const std::string& name, int number);
  Process& process(const std::string& name) { return processes_.at(name); }

  const std::string& coordinator() const { return coordinator_; }
  const std::string& folder() const { return folder_; }
  std::string store() const { return folder_ + "/store.db"; }
  std::string LogOf(const std::string& name) const { return folder_ + "/" + name + ".log"; }
  // A client that waits little for a coordinator that is away.
  const CoordinatorClient& client() const { return *client_; }

  using Predicate = std::function<bool(const v1::StatusReply&)>;
  // Asks for the status until the predicate holds; a coordinator that is away is asked again.
  // Errors: DeadlineExceeded, with `what` and the status last seen.
  absl::StatusOr<v1::StatusReply> Await(const Predicate& predicate, absl::Duration limit,
                                        const std::string& what);
  // Awaits the end of the run; an end that is not DONE is an error too.
  absl::StatusOr<v1::StatusReply> AwaitDone(const std::string& run, absl::Duration limit);

  // The commit records in the store, by round. Requires: no coordinator runs.
  absl::StatusOr<std::map<uint32_t, v1::CommitRecord>> Commits(const std::string& run) const;
  absl::StatusOr<v1::MetaRecord> Meta() const;

 private:
  absl::Status Start(const std::string& name, const std::string& program,
                     std::vector<std::string> arguments);

  const Options options_;
  std::string folder_;
  std::string coordinator_;
  std::unique_ptr<CoordinatorClient> client_;
  std::map<std::string, Process> processes_;
};

// Where the programs are; `name` such as "cadre-worker".
std::string ProgramPath(const std::string& name);

// The whole end of a program that is expected to end by itself.
struct Finished {
  int exit_code = -1;
  std::vector<std::string> lines;
};
// Runs a program to its end. Errors: DeadlineExceeded.
absl::StatusOr<Finished> RunProgram(const std::string& name, std::vector<std::string> arguments,
                                    absl::Duration limit);

// --- Pieces of a status; null where there is no such thing.
const v1::RunStatus* FindRun(const v1::StatusReply& status, const std::string& run);
const v1::GroupStatus* FindGroup(const v1::StatusReply& status, const std::string& run,
                                 uint32_t group);
uint64_t Counter(const v1::StatusReply& status, const std::string& name);

// --- Small runs on synthetic data.
struct SmallRun {
  uint32_t groups = 2;
  uint32_t ranks = 2;
  uint32_t aggregators = 2;
  uint32_t every_steps = 4;
  // Either, as in the spec.
  uint32_t epochs = 0;
  uint32_t steps = 0;
  // Features of the first fully connected layer; makes the model larger.
  uint32_t hidden = 32;
  uint32_t min_ranks = 1;
  uint32_t rejoin_wait_ms = 5000;
};
// Two convolutions' worth of nothing: conv 1 -> 4, pool, fc, fc on 8 x 8 images of 4 classes.
// 2048 training and 512 test samples, 32 samples per group and step. Two class centres are some
// sqrt(2 * 64) apart in noise of 1.5: the best possible accuracy is above 0.99, guessing gives
// 0.25.
v1::RunSpec SmallSpec(const SmallRun& run);
// Parameters of that model.
uint64_t SmallParameters(const SmallRun& run);
// The spec as a file's text.
std::string SpecText(const v1::RunSpec& spec);

}  // namespace cadre::testing
