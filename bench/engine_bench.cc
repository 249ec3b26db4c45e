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
// (bench/compare.py).
//
// step_cpu_ms is the processor time of all threads in a step (median), of all ranks together.
//
// The profile observes every operation of the tape, the list of a step's operations (plan/tape.h).
// Times are sums over all timed steps.
//
// A rate is work divided by time, for the part of a layer that this rank computes. For matrix
// products and convolutions the work is the floating-point operations of the whole layer, scaled by
// the rank's share of the outputs and of the elements that each output sums over; a backward pass
// that computes the gradients of both weights and input counts twice. For all other operations the
// work is the bytes of activations that they read and write (BytesMoved). The sum of these bytes is
// reported as bytes_outside_convolutions.
#include <gflags/gflags.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "comm/transport/thread_transport.h"
#include "kernels/cpu/openmp_settings.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"

DEFINE_string(model, "lenet", "A model of the zoo, or a run file.");
DEFINE_int32(batch, 32, "Samples of a step, over all ranks.");
DEFINE_int32(threads, 1, "Threads of each rank.");
DEFINE_int32(steps, 10, "Number of timed steps; the median is reported.");
DEFINE_int32(warmup, 3, "Number of steps before them that are not timed.");
DEFINE_int32(ranks, 1, "Ranks of the group.");
DEFINE_int32(model_ranks, 1, "Ranks along the model axis.");
DEFINE_int32(space_ranks, 1, "Ranks along the space axis.");
DEFINE_string(precision, "fp32", "fp32, or bf16 on processors with AVX512_BF16.");
DEFINE_bool(recompute, false, "Recompute the activations of all blocks of layers but the last.");
DEFINE_bool(profile, false, "Report the time by kind of operation.");
DEFINE_bool(layers, false, "With --profile: report the time of every operation of every layer.");

namespace cadre {
namespace {

using Json = nlohmann::ordered_json;

// Arithmetic limits the speed of matrix products and convolutions only; memory bandwidth limits the
// rest.
bool IsProduct(LayerKind kind) {
  return kind == LayerKind::kConvolution || kind == LayerKind::kFullyConnected;
}

// Floating-point operations of one layer on this rank: those of the whole batch, scaled by its part
// of the output and by its part of the elements that each output sums over.
double FlopsHere(const GraphLayer& layer, const LayerRegion& region, int64_t samples) {
  const Box& input = region.inputs[0];
  const int64_t last = layer.input().rank();
  const int64_t summed = layer.input()[layer.input().rank() - 1];
  const double outputs = static_cast<double>(region.output.shape().elements()) /
                         static_cast<double>(samples * layer.output.elements());
  // An output of a grouped convolution does not sum over the channels of other groups.
  const double inputs =
      layer.groups > 1
          ? 1.0
          : static_cast<double>(input.end[last] - input.begin[last]) / static_cast<double>(summed);
  return static_cast<double>(layer.flops * samples) * outputs * inputs;
}

absl::StatusOr<v1::RunSpec::Precision> PrecisionNamed(const std::string& name) {
  if (name == "fp32") return v1::RunSpec::FP32;
  if (name == "bf16") return v1::RunSpec::BF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--precision must be fp32 or bf16, not '", name, "'"));
}

std::string NameOf(const Graph& graph, const TapeOp& op) {
  switch (op.kind) {
    case TapeOpKind::kMove:
      return "move";
    case TapeOpKind::kMoveGradient:
      return "move_gradient";
    case TapeOpKind::kSend:
      return "send";
    case TapeOpKind::kReceive:
      return "receive";
    case TapeOpKind::kAdd:
      return "add_gradients";
    case TapeOpKind::kLoss:
      return "loss";
    case TapeOpKind::kForward:
      return absl::StrCat(LayerKindName(graph[op.layer].kind), "_forward");
    case TapeOpKind::kBackward:
      return absl::StrCat(LayerKindName(graph[op.layer].kind), "_backward");
  }
  return "unknown";
}

// How much time of training steps each kind of operation and each operation takes, with rates.
class EngineProfile final : public TapeObserver {
 public:
  explicit EngineProfile(const Graph& graph) : graph_(graph) {}

  void Played(const Tape& tape, const TapeOp& op, absl::Time, double seconds) override {
    const GraphLayer& layer = graph_[op.layer];
    const LayerRegion& region = tape.regions[op.layer];
    Row row{.seconds = seconds};
    const bool backward = op.kind == TapeOpKind::kBackward;
    if (backward || op.kind == TapeOpKind::kForward) {
      // Each of the gradients of weights and of inputs costs as much as the forward pass.
      const bool inputs = backward && !op.dx.empty() && op.dx[0] != TapeOp::kNone;
      const int passes = inputs ? 2 : 1;
      if (IsProduct(layer.kind)) row.flops = passes * FlopsHere(layer, region, tape.samples);
    }
    row.bytes = static_cast<double>(BytesMoved(graph_, tape, op));
    const std::string kind = absl::StrCat(op.again ? "again_" : "", NameOf(graph_, op));
    kinds_[kind] += row;
    const std::string name = absl::StrCat(layer.name, " ", kind);
    const auto [found, inserted] = layers_.try_emplace(name);
    if (inserted) order_.push_back(name);
    found->second += row;
    seconds_ += seconds;
    if (op.kind == TapeOpKind::kLoss) {
      bytes_outside_convolutions_ = BytesMovedOutsideConvolutions(graph_, tape);
    }
  }

  // Sum of the seconds of all operations.
  double seconds() const { return seconds_; }
  // Bytes that one pass moves outside convolutions.
  int64_t bytes_outside_convolutions() const { return bytes_outside_convolutions_; }

  // Kind of operation -> {"ms", "share", "gflops", "of_peak"}, in milliseconds per step.
  // Requires: steps >= 1.
  Json ByKind(int steps, double step_seconds, double peak_flops) const {
    Json json = Json::object();
    for (const auto& [name, row] : kinds_) {
      json[name] = {{"ms", Rounded(row.seconds / steps * 1e3, 3)},
                    {"share", Rounded(row.seconds / steps / step_seconds, 4)}};
      if (row.flops == 0) continue;
      json[name]["gflops"] = Rounded(row.flops / row.seconds / 1e9, 1);
      json[name]["of_peak"] = Rounded(row.flops / row.seconds / peak_flops, 3);
    }
    return json;
  }

  // [{"op", "ms", "gflops" or "gbs"}] of every operation in the order of a step. "gbs" counts the
  // bytes that it moves, in 10^9 per second.
  Json ByLayer(int steps) const {
    Json json = Json::array();
    for (const std::string& name : order_) {
      const Row& row = layers_.at(name);
      json.push_back({{"op", name}, {"ms", Rounded(row.seconds / steps * 1e3, 3)}});
      if (row.flops > 0) {
        json.back()["gflops"] = Rounded(row.flops / row.seconds / 1e9, 1);
      } else if (row.bytes > 0) {
        json.back()["gbs"] = Rounded(row.bytes / row.seconds / 1e9, 1);
      }
    }
    return json;
  }

 private:
  struct Row {
    double seconds = 0;
    double flops = 0;
    double bytes = 0;

    void operator+=(const Row& other) {
      seconds += other.seconds;
      flops += other.flops;
      bytes += other.bytes;
    }
  };

  const Graph& graph_;
  double seconds_ = 0;
  int64_t bytes_outside_convolutions_ = 0;
  std::map<std::string, Row> kinds_;
  std::vector<std::string> order_;
  std::map<std::string, Row> layers_;
};

// The highest rate of floating-point operations that this machine reaches in this precision for a
// matrix product and a convolution that fit its caches. It is measured before the ranks start,
// which share the cores. Errors: SetPrecision's.
absl::StatusOr<double> PeakFlops(Precision precision) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
  CADRE_RETURN_IF_ERROR(kernels->SetPrecision(precision));
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
  const std::vector<float> w(kSide * kSide, 0.25F);
  // Room for activations of any type.
  std::vector<float> memory(2 * kSide * kSide);
  const Values x(memory.data(), kSide * kSide, kernels->activation_type());
  const Values y(memory.data() + kSide * kSide, kSide * kSide, kernels->activation_type());
  kernels->memory().Copy(w, x);
  const Values images = x.first(4 * kImage * kImage * kChannels);
  const std::span<const float> weights = std::span(w).first(9 * kChannels * kChannels);
  const Timing product = Measure([&] {
    kernels->dense().FullyConnectedForward({kSide, kSide, kSide}, x, w, {}, y);
  });
  const Timing convolved = Measure([&] {
    kernels->window().ConvolutionForward(convolution, images, weights, {}, y.first(images.size()));
  });
  return std::max(2.0 * kSide * kSide * kSide / product.min_seconds,
                  2.0 * 4 * kImage * kImage * kChannels * kChannels * 9 / convolved.min_seconds);
}

// The peak of this process, up to now.
int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Trains one rank, and writes the output line with its measurements.
absl::Status Train(const v1::RunSpec& spec, const v1::Plan& plan, double peak, Transport& transport,
                   Json& line) {
  const std::unique_ptr<Backend> kernels = MakeCpuBackend(FLAGS_threads);
  CADRE_ASSIGN_OR_RETURN(const auto replica, Replica::Make(spec, plan, *kernels, transport));
  StepLoop loop(*replica, FLAGS_batch);
  CADRE_RETURN_IF_ERROR(loop.Run(FLAGS_warmup));
  EngineProfile profile(replica->graph());
  replica->network().set_observer(&profile);
  std::vector<double> seconds, processor_seconds;
  const double waited = replica->seconds_exposed();
  for (int step = 0; step < FLAGS_steps; ++step) {
    const absl::Time start = absl::Now();
    const double processor_start = ProcessorSeconds();
    CADRE_RETURN_IF_ERROR(loop.Run(1));
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    processor_seconds.push_back(ProcessorSeconds() - processor_start);
  }
  CADRE_RETURN_IF_ERROR(replica->AwaitOperations());
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double median = Median(seconds);
  line = BenchLine("engine");
  line.update(
      {{"model", FLAGS_model},
       {"precision", FLAGS_precision},
       {"batch", FLAGS_batch},
       {"threads", FLAGS_threads},
       {"ranks", FLAGS_ranks},
       {"model_ranks", FLAGS_model_ranks},
       {"space_ranks", FLAGS_space_ranks},
       {"recomputed_blocks", plan.recomputed_size()},
       {"parameters", ParameterCount(*replica)},
       {"samples_per_second", Rounded(FLAGS_batch / median, 3)},
       {"step_ms", Rounded(median * 1e3, 3)},
       {"step_cpu_ms", Rounded(Median(processor_seconds) * 1e3, 3)},
       {"exposed_communication_share", Rounded((replica->seconds_exposed() - waited) / total, 4)},
       {"first_loss", Rounded(loop.first_loss(), 5)},
       {"last_loss", Rounded(loop.last_loss(), 5)},
       {"activation_bytes", replica->Memory().activations()},
       {"bytes_outside_convolutions", profile.bytes_outside_convolutions()},
       {"peak_resident_bytes", PeakResidentBytes()}});
  if (!FLAGS_profile) return absl::OkStatus();
  const double mean = total / FLAGS_steps;
  line["peak_gflops"] = Rounded(peak / 1e9, 1);
  line["other_ms"] = Rounded((mean - profile.seconds() / FLAGS_steps) * 1e3, 3);
  line["operations"] = profile.ByKind(FLAGS_steps, mean, peak);
  if (FLAGS_layers) line["layers"] = profile.ByLayer(FLAGS_steps);
  return absl::OkStatus();
}

// Trains with one thread for each rank, and prints the line of rank 0.
absl::Status TrainGroup(const v1::RunSpec& spec) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, FLAGS_ranks));
  if (FLAGS_recompute && plan.recomputed().empty()) {
    return absl::InvalidArgumentError("--recompute: the model is a single block");
  }
  const std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(FLAGS_ranks, absl::Minutes(10));
  double peak = 0;
  if (FLAGS_profile) {
    const bool bf16 = spec.precision() == v1::RunSpec::BF16;
    CADRE_ASSIGN_OR_RETURN(peak, PeakFlops(bf16 ? Precision::kBf16 : Precision::kFp32));
  }
  std::vector<absl::Status> results(transports.size());
  std::vector<Json> lines(transports.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < FLAGS_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = Train(spec, plan, peak, *transports[rank], lines[rank]);
      // Aborts, so that the other ranks do not wait for one that has failed.
      if (!results[rank].ok()) transports[rank]->Abort(results[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) CADRE_RETURN_IF_ERROR(result);
  PrintLine(lines[0]);
  return absl::OkStatus();
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch},
                                         {"--threads", FLAGS_threads},
                                         {"--steps", FLAGS_steps},
                                         {"--ranks", FLAGS_ranks}}));
  if (FLAGS_warmup < 0) return absl::InvalidArgumentError("--warmup must not be negative");
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec::Precision precision, PrecisionNamed(FLAGS_precision));
  CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = FLAGS_model,
                                                      .batch = FLAGS_batch,
                                                      .ranks = FLAGS_ranks,
                                                      .model_ranks = FLAGS_model_ranks,
                                                      .space_ranks = FLAGS_space_ranks}));
  spec.set_precision(precision);
  spec.mutable_cluster()->set_recompute(FLAGS_recompute ? v1::Recomputation::ALL
                                                        : v1::Recomputation::OFF);
  return TrainGroup(spec);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  cadre::EnsureOpenMpSettings(argv);
  return cadre::BenchMain(argc, argv, "bench/engine_bench.cc",
                          "bench_engine: measures training steps and prints one JSON line.",
                          cadre::Run);
}
