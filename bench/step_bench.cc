// Times training steps of one group over real links. Each rank is a process, which is started with
// its rank and the addresses of all; rank 0 prints JSON lines.
//
//   bench_step --what overlap --model alexnet --batch 32 --rank 0 --peers HOST:7100,HOST:7100
//   bench_step --what plan-error --models lenet:256,alexnet:32 --rank 0 --peers ...
//   bench_step --what makespan --model bench/makespan/diamond.textproto --times a:2:2,b:4:4 ...
//
// bench/step/ describes each; plan_error.py and makespan.py create the hosts and run the program on
// them. bench_engine times steps of a group in one process, and bench_gpu_step those on a GPU.
#include <gflags/gflags.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/harness.h"
#include "bench/step/step.h"
#include "bench/training.h"
#include "kernels/cpu/openmp_settings.h"

DEFINE_string(what, "overlap", "overlap, plan-error or makespan.");
DEFINE_int32(rank, 0, "Rank of this process.");
DEFINE_string(peers, "127.0.0.1:0", "host:port of every rank, separated by commas.");
DEFINE_bool(shared_memory, true, "Connect ranks on one host by shared memory; false: TCP.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_string(model, "alexnet",
              "A model of the zoo, or a run file; with plan-error, see --models.");
DEFINE_int32(batch, 32, "overlap: samples of a step, over all ranks.");
DEFINE_int32(steps, 3, "overlap: steps of each configuration in each round. makespan: steps.");
DEFINE_int32(
    micro_batches, 1,
    "plan-error: micro-batches of a step; must divide the batches. makespan: micro-batches "
    "of one sample each.");
// --what overlap
DEFINE_int32(rounds, 3, "Rounds; each runs all configurations.");
DEFINE_int32(warmup, 1, "Steps of each configuration before the first round.");
DEFINE_string(configs, "data:ring:off,data:ring:on,data:auto:on,model:auto:on",
              "Configurations, separated by commas.");
// --what plan-error
DEFINE_string(models, "lenet:256",
              "model:batch, separated by commas; the batch is that of all ranks.");
DEFINE_string(strategies, "", "Strategies whose plans are run, separated by commas; empty: all.");
DEFINE_bool(placed, false, "Also the plan of plan/search/placed_plans.h.");
DEFINE_double(cores, 0, "Cores that one rank has for itself; 0: as many as it uses.");
DEFINE_double(seconds, 4, "Approximate time for which the steps of a plan are measured.");
DEFINE_string(link, "", "Description of the links, for the output.");
// --what makespan
DEFINE_string(
    times, "",
    "layer:forward:backward in units, separated by commas. A layer's name, or what follows "
    "the last '/' in it. Others take the time of their computation.");
DEFINE_double(unit_ms, 100, "Milliseconds of a unit.");
DEFINE_double(edge, 0, "Units that the tensor of an edge between ranks takes.");

namespace cadre {
namespace {

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch},
                                         {"--micro_batches", FLAGS_micro_batches},
                                         {"--threads", FLAGS_threads},
                                         {"--steps", FLAGS_steps},
                                         {"--rounds", FLAGS_rounds},
                                         {"--warmup", FLAGS_warmup},
                                         {"--unit_ms", FLAGS_unit_ms}}));
  if (!(FLAGS_seconds > 0)) return absl::InvalidArgumentError("--seconds must be positive");
  if (!(FLAGS_edge >= 0)) return absl::InvalidArgumentError("--edge must not be negative");
  const auto measure = FLAGS_what == "overlap"      ? MeasureOverlap
                       : FLAGS_what == "plan-error" ? MeasurePlanErrors
                       : FLAGS_what == "makespan"   ? MeasureMakespan
                                                    : nullptr;
  if (measure == nullptr) {
    return absl::InvalidArgumentError("--what must be overlap, plan-error or makespan");
  }
  CADRE_ASSIGN_OR_RETURN(const ConnectedRank connected,
                         ConnectRank(FLAGS_rank, FLAGS_peers, FLAGS_shared_memory));
  std::vector<int> ranks(connected.transport->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  Communicator all(*connected.transport, ranks);
  return measure({.transport = *connected.transport, .communicator = all});
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::EnsureOpenMpSettings(argv);
  return cadre::BenchMain(
      argc, argv, "bench/step_bench.cc",
      "bench_step: times training steps over real links; rank 0 prints JSON lines.", cadre::Run);
}
