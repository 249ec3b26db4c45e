// A cluster of real processes on free loopback ports, for tests that kill some of them.
//
// Owns the processes and a temporary folder; its destructor ends and removes them.
// Thread-compatible.
//
//   Cluster cluster({.lease = absl::Seconds(2)});
//   ASSERT_TRUE(cluster.StartAll(/*aggregators=*/2, /*workers=*/4).ok());
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
#include "base/rpc/identity.h"
#include "cli/process.h"
#include "coordinator/client/coordinator_client.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/base/temporary_folder.h"

namespace cadre::testing {

// Sanitized processes take several times the memory, and keep what is freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

class Cluster {
 public:
  struct Options {
    // Time without messages after which a member is lost.
    absl::Duration lease = absl::Seconds(2);
    // Age limit of TLS connections to the coordinator and the aggregators.
    absl::Duration connection_age = absl::Hours(1);
    // Time without progress after which a worker's exchange with a shard ends.
    absl::Duration exchange_silence = absl::Seconds(90);
    // How long groups wait for an aggregator that is away.
    absl::Duration aggregator_patience = absl::Hours(1);
    // Whether aggregators keep what 'cadre replay' requires.
    bool archive = false;
  };

  Cluster() : Cluster(Options()) {}
  explicit Cluster(Options options);
  // If the test has failed, prints the ends of the logs, and copies the logs into the folder that
  // the environment variable CADRE_KEEP_LOGS names.
  ~Cluster();

  // Starts the coordinator: the first time on a free port, later on the same port and store.
  absl::Status StartCoordinator();
  // Starts one of several coordinators, of which one leads: the first time on a free port, later on
  // the same one. `store`: the database that they share. Members that are started afterwards know
  // all that were started before.
  absl::Status StartCoordinator(const std::string& name, const std::string& store);
  // Starts an aggregator with this name and the folder of this name, on a free port.
  // `environment`: as in ProcessOptions.
  absl::Status StartAggregator(const std::string& name, std::vector<std::string> environment = {});
  absl::Status StartWorker(const std::string& name);
  // Starts a coordinator, aggregator-<i> and worker-<i>, and awaits that all have joined.
  absl::Status StartAll(int aggregators, int workers);
  // Starts all members that the run needs and submits it; returns its id.
  absl::StatusOr<std::string> StartRun(const v1::RunSpec& spec);
  // Processes that are started from now on are those of the build whose programs are in `folder`;
  // at first, those of this build.
  void UsePrograms(const std::string& folder) { programs_ = folder; }

  // The folder of the credentials of a program.
  std::string TlsOf(const std::string& name) const { return folder_ / ("tls/" + name); }
  // Issues the credentials of a program, again if it has some. It has the name of the process.
  absl::Status Issue(const std::string& name, Role role, absl::Time end);

  // Sends SIGKILL. Requires: the process runs.
  void Kill(const std::string& name);
  void Signal(const std::string& name, int number);
  Process& process(const std::string& name) { return processes_.at(name); }

  const std::string& coordinator() const { return coordinator_; }
  // Requires: this coordinator was started with a shared store.
  const std::string& AddressOf(const std::string& name) const { return addresses_.at(name); }
  const std::string& folder() const { return folder_.path(); }
  std::string store() const { return folder_ / "store.db"; }
  std::string LogOf(const std::string& name) const { return folder_ / (name + ".log"); }
  // A client with a short timeout, since the coordinator may be down.
  const CoordinatorClient& client() const { return *client_; }

  using Predicate = std::function<bool(const v1::StatusReply&)>;
  // Polls the status until the predicate holds. The coordinator may be down meanwhile.
  // Errors: DeadlineExceeded with `what` and the newest status.
  absl::StatusOr<v1::StatusReply> Await(const Predicate& predicate, absl::Duration limit,
                                        const std::string& what);
  // Awaits that the run has ended or is parked. Errors: as Await.
  absl::StatusOr<v1::StatusReply> AwaitEnd(const std::string& run, absl::Duration limit);
  // Awaits state DONE. Errors: as AwaitEnd; Aborted if the run ends in another state.
  absl::StatusOr<v1::StatusReply> AwaitDone(const std::string& run, absl::Duration limit);

  // The commit records in the store, by round. Requires: no coordinator runs.
  absl::StatusOr<std::map<uint32_t, v1::CommitRecord>> Commits(const std::string& run) const;
  absl::StatusOr<v1::MetaRecord> Meta() const;

 private:
  // Starts a coordinator at this address, and returns the address with the port that it has.
  absl::StatusOr<std::string> StartCoordinatorAt(const std::string& name, const std::string& listen,
                                                 const std::string& store);
  // Makes the client of `coordinator_`.
  absl::Status MakeClient();
  // Starts the program with TLS.
  absl::Status Start(const std::string& name, const std::string& program, Role role,
                     std::vector<std::string> arguments, std::vector<std::string> environment = {});

  const Options options_;
  const TemporaryFolder folder_;
  std::string programs_;
  // One address, or several.
  std::string coordinator_;
  // Addresses of several coordinators, by name.
  std::map<std::string, std::string> addresses_;
  std::unique_ptr<CoordinatorClient> client_;
  std::map<std::string, Process> processes_;
};

// The path of a program such as "cadre-worker".
std::string ProgramPath(const std::string& name);

// Result of a program that ends by itself.
struct Finished {
  int exit_code = -1;
  std::vector<std::string> lines;
};
// Runs a program to its end. Errors: DeadlineExceeded.
absl::StatusOr<Finished> RunProgram(const std::string& name, std::vector<std::string> arguments,
                                    absl::Duration limit);

// Runs `cadre`, expects the exit code and returns the lines of stdout and stderr.
std::string RunCadre(const std::vector<std::string>& arguments, int exit_code = 0);

// --- Each function returns a part of a status; null if the status has no such part.
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
  // The stop rules of the spec; one is set.
  uint32_t epochs = 0;
  uint32_t steps = 0;
  // Features of the first fully connected layer, which determine the size of the model.
  uint32_t hidden = 32;
  uint32_t min_ranks = 1;
  uint32_t rejoin_wait_ms = 5000;
};
// A small model: convolution 1 -> 4, pooling and two fully connected layers on 8 x 8 images of 4
// classes; 2048 training and 512 test samples, 32 samples per group and step. The distance of two
// class centres is about sqrt(2 * 64), with noise of 1.5: the best possible accuracy is above 0.99,
// a random guess has 0.25.
v1::RunSpec SmallSpec(const SmallRun& run);
// Parameters of that model.
uint64_t SmallParameters(const SmallRun& run);
// The spec as the text of a run file.
std::string SpecText(const v1::RunSpec& spec);

}  // namespace cadre::testing
