// Training throughput of one group, whose ranks are threads of this process, as one JSON line on
// stdout. A step is forward, loss, backward, reduction and SGD with momentum on batches in memory,
// as comparisons with other frameworks time it.
//
//   bench_engine --model resnet18 --batch 16 --threads 2 --steps 10
//   bench_engine --model lenet --batch 64 --ranks 2            two ranks with one thread each
//   bench_engine --model vgg11 --batch 8 --profile             time by kind of operation
//   bench_engine --model vgg11 --batch 8 --profile --layers    and of every operation
//
// To compare with another program, run both alternately, several times, and compare medians
// (bench/side_by_side.py).
#include <gflags/gflags.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/engine_profile.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"
#include "worker/transport/thread_transport.h"

DEFINE_string(model, "lenet", "A model of the zoo, or a run file.");
DEFINE_string(zoo, "", "Folder of run files to take the model from, instead of the built-in zoo.");
DEFINE_int32(batch, 32, "Samples of a step, over all ranks.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_int32(steps, 10, "Number of timed steps; the median is reported.");
DEFINE_int32(warmup, 3, "Number of steps before them that are not timed.");
DEFINE_int32(ranks, 1, "Ranks of the group.");
DEFINE_int32(model_ranks, 1, "Ranks along the model axis.");
DEFINE_int32(space_ranks, 1, "Ranks along the space axis.");
DEFINE_bool(profile, false, "Report the time by kind of operation.");
DEFINE_bool(layers, false, "With --profile: report the time of every operation of every layer.");

namespace cadre {
namespace {

using Json = nlohmann::ordered_json;

struct Measured {
  std::vector<double> seconds;
  double waited = 0;
  double first_loss = 0;
  double last_loss = 0;
  int64_t parameters = 0;
  v1::MemoryUse memory;
  Json profile;
};

// The highest rate of floating-point operations that this machine reaches for a matrix product and
// a convolution that fit its caches. It is measured before the ranks start, which share the cores.
double PeakFlops() {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
  constexpr int64_t kSide = 1024;
  constexpr int64_t kImage = 28;
  constexpr int64_t kChannels = 256;
  const ConvolutionDims convolution{.batch = 4,
                                    .in_channels = kChannels,
                                    .out_channels = kChannels,
                                    .window = {.in_height = kImage,
                                               .in_width = kImage,
                                               .out_height = kImage,
                                               .out_width = kImage,
                                               .kernel_height = 3,
                                               .kernel_width = 3,
                                               .pad_top = 1,
                                               .pad_left = 1}};
  const std::vector<float> x(kSide * kSide, 0.5F);
  const std::vector<float> w(kSide * kSide, 0.25F);
  std::vector<float> y(kSide * kSide);
  const std::span<const float> images = std::span(x).first(4 * kImage * kImage * kChannels);
  const std::span<const float> weights = std::span(w).first(9 * kChannels * kChannels);
  const Timing product = Measure([&] {
    kernels->dense().FullyConnectedForward({kSide, kSide, kSide}, x, w, {}, y);
  });
  const Timing convolved = Measure([&] {
    kernels->window().ConvolutionForward(convolution, images, weights, {},
                                         std::span(y).first(images.size()));
  });
  return std::max(2.0 * kSide * kSide * kSide / product.min_seconds,
                  2.0 * 4 * kImage * kImage * kChannels * kChannels * 9 / convolved.min_seconds);
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

absl::StatusOr<Measured> Train(const v1::RunSpec& spec, const v1::Plan& plan, double peak,
                               Transport& transport) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
  CADRE_ASSIGN_OR_RETURN(const auto replica, Replica::Make(spec, plan, *kernels, transport));
  const RandomBatch batch(*replica, FLAGS_batch);
  EngineProfile profile(replica->graph());
  replica->set_observer(&profile);
  Measured measured;
  double exposed = 0;
  for (int step = -FLAGS_warmup; step < FLAGS_steps; ++step) {
    if (step == 0) {
      profile.Clear();
      exposed = (replica->seconds_waited() + replica->seconds_moving());
    }
    const absl::Time start = absl::Now();
    const BatchView view = batch.View(FLAGS_batch, step + FLAGS_warmup);
    CADRE_ASSIGN_OR_RETURN(const LossPart loss,
                           replica->Step({&view, 1}, kBenchRate, /*gather=*/true));
    const double mean = loss.loss / static_cast<double>(loss.samples);
    if (step == -FLAGS_warmup) measured.first_loss = mean;
    measured.last_loss = mean;
    if (step >= 0) measured.seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  CADRE_RETURN_IF_ERROR(replica->AwaitOperations());
  measured.waited = (replica->seconds_waited() + replica->seconds_moving()) - exposed;
  measured.parameters = ParameterCount(*replica);
  measured.memory = replica->Memory();
  if (FLAGS_profile && transport.rank() == 0) {
    const double step = Sum(measured.seconds) / FLAGS_steps;
    measured.profile = {
        {"peak_gflops", Rounded(peak / 1e9, 1)},
        {"other_ms", Rounded((step - profile.seconds() / FLAGS_steps) * 1e3, 3)},
        {"operations", profile.ByKind(FLAGS_steps, step, peak)},
    };
    if (FLAGS_layers) measured.profile["layers"] = profile.ByLayer(FLAGS_steps);
  }
  return measured;
}

// Trains with one thread for each rank; returns the measurements of rank 0.
absl::StatusOr<Measured> TrainGroup(const v1::RunSpec& spec) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, FLAGS_ranks));
  const std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(FLAGS_ranks, absl::Minutes(10));
  const double peak = FLAGS_profile ? PeakFlops() : 0;
  std::vector<std::optional<absl::StatusOr<Measured>>> results(transports.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < FLAGS_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = Train(spec, plan, peak, *transports[rank]);
      // Aborts, so that the other ranks do not wait for one that has failed.
      if (!results[rank]->ok()) transports[rank]->Abort(results[rank]->status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CADRE_RETURN_IF_ERROR(result->status());
  return **results[0];
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch},
                                         {"--threads", FLAGS_threads},
                                         {"--steps", FLAGS_steps},
                                         {"--ranks", FLAGS_ranks}}));
  if (FLAGS_warmup < 0) return absl::InvalidArgumentError("--warmup must not be negative");
  const bool built_in = FLAGS_zoo.empty() || absl::EndsWith(FLAGS_model, ".textproto");
  const std::string model =
      built_in ? FLAGS_model : absl::StrCat(FLAGS_zoo, "/", FLAGS_model, ".textproto");
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, BenchSpec({.model = model,
                                                            .batch = FLAGS_batch,
                                                            .ranks = FLAGS_ranks,
                                                            .model_ranks = FLAGS_model_ranks,
                                                            .space_ranks = FLAGS_space_ranks}));
  CADRE_ASSIGN_OR_RETURN(const Measured measured, TrainGroup(spec));
  const double step = Median(measured.seconds);
  Json line = BenchLine("engine");
  line.update({{"model", FLAGS_model},
               {"batch", FLAGS_batch},
               {"threads", FLAGS_threads},
               {"ranks", FLAGS_ranks},
               {"model_ranks", FLAGS_model_ranks},
               {"space_ranks", FLAGS_space_ranks},
               {"parameters", measured.parameters},
               {"samples_per_second", Rounded(FLAGS_batch / step, 3)},
               {"step_ms", Rounded(step * 1e3, 3)},
               {"exposed_communication_share", Rounded(measured.waited / Sum(measured.seconds), 4)},
               {"first_loss", Rounded(measured.first_loss, 5)},
               {"last_loss", Rounded(measured.last_loss, 5)},
               {"activation_bytes", measured.memory.activations()}});
  if (!measured.profile.is_null()) line.update(measured.profile);
  PrintLine(line);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, "bench/engine_bench.cc",
                          "bench_engine: measures training steps and prints one JSON line.",
                          cadre::Run);
}
