// Training throughput of one group of the engine, ranks being threads of this process, as one JSON
// line on stdout. A step is forward, loss, backward, reduction and SGD with momentum, on batches
// that lie in memory, as a comparison with other engines wants it.
//
//   bench_engine --model resnet18 --batch 16 --threads 2 --steps 10
//   bench_engine --model lenet --batch 64 --ranks 2            two ranks of one thread each
//   bench_engine --model vgg11 --batch 8 --profile             where the time goes
//
// Side by side with another program: run them in turn, several times, and compare medians.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/engine_profile.h"
#include "bench/training_setup.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"
#include "worker/transport/thread_transport.h"

DEFINE_string(model, "lenet", "A model of the zoo, or a *.textproto run spec.");
DEFINE_string(zoo, "model/zoo", "Folder of the zoo's specs.");
DEFINE_int32(batch, 32, "Samples of a step, over all ranks.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_int32(steps, 10, "Steps that are timed; the median counts.");
DEFINE_int32(warmup, 3, "Steps before that are not.");
DEFINE_int32(ranks, 1, "Ranks of the group.");
DEFINE_int32(model_ranks, 1, "Of these, along the model axis.");
DEFINE_int32(space_ranks, 1, "Of these, along the space axis.");
DEFINE_bool(profile, false, "Say where the time goes, by kind of operation.");

namespace cadre {
namespace {

struct Measured {
  std::vector<double> seconds;
  double waited = 0;
  double first_loss = 0;
  double last_loss = 0;
  int64_t parameters = 0;
  v1::MemoryUse memory;
  std::string profile;
};

// Floating-point operations a second at the machine's best, of a product of matrices and of a
// convolution that fit the caches. Measured alone, before ranks share the cores.
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
  const std::span<const float> taps = std::span(w).first(9 * kChannels * kChannels);
  double best = 0;
  const auto time = [&](double flops, const auto& work) {
    const absl::Time start = absl::Now();
    work();
    best = std::max(best, flops / absl::ToDoubleSeconds(absl::Now() - start));
  };
  for (int i = 0; i < 10; ++i) {
    time(2.0 * kSide * kSide * kSide, [&] {
      kernels->dense().FullyConnectedForward({kSide, kSide, kSide}, x, w, {}, y);
    });
    time(2.0 * 4 * kImage * kImage * kChannels * kChannels * 9, [&] {
      kernels->window().ConvolutionForward(convolution, images, taps, {},
                                           std::span(y).first(images.size()));
    });
  }
  return best;
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
  CADRE_RETURN_IF_ERROR(replica->Settle());
  measured.waited = (replica->seconds_waited() + replica->seconds_moving()) - exposed;
  for (const Parameter& parameter : replica->index().parameters()) {
    if (!IsStatistic(parameter.role)) measured.parameters += parameter.shape.elements();
  }
  measured.memory = replica->Memory();
  if (FLAGS_profile && transport.rank() == 0) {
    double total = 0;
    for (const double seconds : measured.seconds) total += seconds;
    const double step = total / FLAGS_steps;
    measured.profile = absl::StrFormat(R"(,"peak_gflops":%.1f,"other_ms":%.3f,"operations":%s)",
                                       peak / 1e9, (step - profile.seconds() / FLAGS_steps) * 1e3,
                                       profile.Json(FLAGS_steps, step, peak));
  }
  return measured;
}

absl::StatusOr<std::string> Run() {
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec spec, BenchSpec({.zoo = FLAGS_zoo,
                                                            .model = FLAGS_model,
                                                            .batch = FLAGS_batch,
                                                            .ranks = FLAGS_ranks,
                                                            .model_ranks = FLAGS_model_ranks,
                                                            .space_ranks = FLAGS_space_ranks}));
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, FLAGS_ranks));
  const std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(FLAGS_ranks, absl::Minutes(10));
  const double peak = FLAGS_profile ? PeakFlops() : 0;
  std::vector<std::optional<absl::StatusOr<Measured>>> results(transports.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < transports.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = Train(spec, plan, peak, *transports[rank]);
      // The others must not wait for a rank that is gone.
      if (!results[rank]->ok()) transports[rank]->Abort(results[rank]->status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CADRE_RETURN_IF_ERROR(result->status());
  const Measured& first = **results[0];
  const double step = Median(first.seconds);
  double total = 0;
  for (const double seconds : first.seconds) total += seconds;
  return absl::StrFormat(
      R"({"bench":"engine","model":"%s","batch":%d,"threads":%d,"ranks":%d,"model_ranks":%d,)"
      R"("space_ranks":%d,"parameters":%d,"samples_per_second":%.3f,"step_ms":%.3f,)"
      R"("exposed_communication_share":%.4f,"first_loss":%.5f,"last_loss":%.5f,)"
      R"("activation_bytes":%d%s})",
      FLAGS_model, FLAGS_batch, FLAGS_threads, FLAGS_ranks, FLAGS_model_ranks, FLAGS_space_ranks,
      first.parameters, FLAGS_batch / step, step * 1e3, first.waited / total, first.first_loss,
      first.last_loss, first.memory.activations(), first.profile);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage("Measures training steps. Prints one JSON line.");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_batch < 1 || FLAGS_threads < 1 || FLAGS_steps < 1 || FLAGS_warmup < 0 ||
      FLAGS_ranks < 1) {
    std::fprintf(stderr, "--batch, --threads, --steps and --ranks must be at least 1\n");
    return 2;
  }
  const auto line = cadre::Run();
  if (!line.ok()) {
    std::fprintf(stderr, "bench_engine: %s\n", std::string(line.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", line->c_str());
  return 0;
}
