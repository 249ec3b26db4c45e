// Measures the coordinator under the load of many members, which follow the protocol but have no
// data.
//
//   bench_coordinator --members=100000 --placed=0.5   the state machine alone, in this process
//   bench_coordinator --streams=5000                  the program, over that many real streams
//   bench_coordinator --starting=1000 --ranks=1       groups that all start together
//
// Prints one JSON line. bench/coordinator/README.md describes the method.
#include <gflags/gflags.h>

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "bench/coordinator/load.h"
#include "bench/harness.h"

DEFINE_int32(members, 100'000, "Workers of the state machine in this process.");
DEFINE_int32(streams, 0,
             "Workers that join a cadre-coordinator in a child process, each by a stream and a "
             "connection of its own; 0: measure the state machine in this process instead.");
DEFINE_int32(starting, 0,
             "Groups of one run that start together in this process, with the real planner and a "
             "store on disk, in place of the other measurements; 0: none.");
DEFINE_string(model, "resnet50", "With --starting: a model of the zoo.");
DEFINE_double(placed, 0.5, "Share of the workers that hold a rank of a group.");
DEFINE_int32(ranks, 16, "Ranks of a group.");
DEFINE_int32(groups, 16, "Groups of a run.");
DEFINE_double(seconds, 20, "Measured time.");
DEFINE_double(setup_seconds, 120,
              "Limit for the time in which the members join. The state machine is measured with "
              "those that have joined by then; with --streams, exceeding it is an error.");
DEFINE_double(round_seconds, 5, "With --streams: seconds for which groups train between rounds.");
DEFINE_double(status_interval, 0.1, "With --streams: seconds between two status requests.");
DEFINE_int32(lease_ms, 10'000, "With --streams: cadre-coordinator --lease-ms.");
DEFINE_string(programs, "",
              "With --streams: folder of cadre-coordinator; empty: that of this program.");

namespace cadre {
namespace {

absl::Status RunStart() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--starting", FLAGS_starting}}));
  nlohmann::ordered_json line = BenchLine("coordinator start");
  CADRE_ASSIGN_OR_RETURN(const auto result, MeasureStart({.workers = FLAGS_starting * FLAGS_ranks,
                                                          .placed = 1,
                                                          .ranks_per_group = FLAGS_ranks,
                                                          .groups_per_run = FLAGS_starting,
                                                          .setup_seconds = FLAGS_setup_seconds,
                                                          .model = FLAGS_model}));
  line.update(result);
  PrintLine(line);
  return absl::OkStatus();
}

absl::Status RunBenchmark() {
  CADRE_RETURN_IF_ERROR(RequirePositive(
      {{"--ranks", FLAGS_ranks}, {"--groups", FLAGS_groups}, {"--lease-ms", FLAGS_lease_ms}}));
  if (!(FLAGS_seconds > 0)) return absl::InvalidArgumentError("--seconds must be positive");
  if (!(FLAGS_placed >= 0 && FLAGS_placed <= 1)) {
    return absl::InvalidArgumentError("--placed must be between 0 and 1");
  }
  const bool streams = FLAGS_streams != 0;
  CADRE_RETURN_IF_ERROR(
      RequirePositive({streams ? std::pair<const char*, double>("--streams", FLAGS_streams)
                               : std::pair<const char*, double>("--members", FLAGS_members)}));
  if (FLAGS_starting != 0) return RunStart();
  const LoadOptions options = {.workers = streams ? FLAGS_streams : FLAGS_members,
                               .placed = FLAGS_placed,
                               .ranks_per_group = FLAGS_ranks,
                               .groups_per_run = FLAGS_groups,
                               .seconds = FLAGS_seconds,
                               .setup_seconds = FLAGS_setup_seconds,
                               .round_seconds = FLAGS_round_seconds,
                               .status_interval = FLAGS_status_interval,
                               .lease = absl::Milliseconds(FLAGS_lease_ms),
                               .programs = FLAGS_programs};
  nlohmann::ordered_json line = BenchLine("coordinator");
  CADRE_ASSIGN_OR_RETURN(const auto result,
                         streams ? MeasureStreams(options) : MeasureMachine(options));
  line.update(result);
  PrintLine(line);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(
      argc, argv, "bench/coordinator_bench.cc",
      "bench_coordinator: load of many members on the coordinator, as a JSON line.\n\n"
      "  bench_coordinator --members=100000 --placed=0.5   the state machine, in this process\n"
      "  bench_coordinator --streams=5000                  the program, over real streams\n"
      "  bench_coordinator --starting=1000 --ranks=1       groups that all start together",
      cadre::RunBenchmark);
}
