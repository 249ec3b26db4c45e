// Measures the time of a training step on a GPU, and prints one JSON line on stdout with three
// times: with recordings (CUDA graphs), without them, and of the step's kernels alone. The latter
// are enqueued while the GPU is busy with other work, so that they follow one another without a
// gap; the rest of a step is launch gaps and waits.
//
//   bench_gpu_step --model resnet50 --batch 256 --precision bf16
//   bench_gpu_step --model gpt --batch 64 --precision tf32 --recordings=false
//
// A step is the copy of the batch from the host to the GPU, forward, loss, backward and SGD with
// momentum. bench/gpu/gpu_step.py runs it alternately with PyTorch. The line has a `failure`, and
// the exit code is not 0, if a step fails, if recordings were requested but none was replayed, or
// if attention was not fused for lack of a plan. Exit codes: bench/gpu/gpu_bench.h.
#include <gflags/gflags.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/median.h"
#include "base/status.h"
#include "bench/gpu/gpu_bench.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "comm/transport/thread_transport.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"

DEFINE_string(device, "cuda", "Device: cuda or cuda:N.");
DEFINE_string(libraries, "",
              "Folders to search first for cuBLAS, cuDNN and NCCL, separated by commas.");
DEFINE_string(model, "resnet50", "A model of the zoo, or a run file.");
DEFINE_string(precision, "bf16", "fp32, tf32 or bf16.");
DEFINE_int32(batch, 64, "Samples of a step.");
DEFINE_int32(steps, 20, "Number of timed steps; the median is reported.");
DEFINE_int32(warmup, 6, "Steps before them, which choose algorithms and record.");
DEFINE_bool(recordings, true,
            "Replay recorded steps; steps without recordings are always measured.");

namespace cadre {
namespace {

absl::StatusOr<v1::RunSpec::Precision> PrecisionNamed(const std::string& name) {
  if (name == "fp32") return v1::RunSpec::FP32;
  if (name == "tf32") return v1::RunSpec::TF32;
  if (name == "bf16") return v1::RunSpec::BF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--precision must be fp32, tf32 or bf16, not ", name));
}

struct StepTime {
  // Median.
  double seconds = 0;
  // How often the host blocked in a step, on average.
  double host_waits = 0;
};

absl::StatusOr<StepTime> TimeSteps(Replica& replica, const Device& device, StepLoop& loop) {
  CADRE_RETURN_IF_ERROR(loop.Run(FLAGS_warmup));
  CADRE_RETURN_IF_ERROR(replica.AwaitOperations());
  const int64_t waits = device.host_syncs();
  CADRE_ASSIGN_OR_RETURN(const std::vector<double> seconds, loop.Time(FLAGS_steps, 1));
  const double host_waits = static_cast<double>(device.host_syncs() - waits) / FLAGS_steps;
  CADRE_RETURN_IF_ERROR(replica.AwaitOperations());
  return StepTime{.seconds = Median(seconds), .host_waits = host_waits};
}

// Median time of the kernels of a step alone. A step without recordings first gives an upper bound
// for the time that the host needs to enqueue one; the timer then keeps the device busy for longer
// than that.
absl::StatusOr<double> KernelSeconds(Replica& replica, StepLoop& loop, EventTimer& timer) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    CADRE_RETURN_IF_ERROR(replica.AwaitOperations());
    const absl::Time start = absl::Now();
    CADRE_RETURN_IF_ERROR(loop.Run(1));
    CADRE_RETURN_IF_ERROR(replica.AwaitOperations());
    const double enqueuing = absl::ToDoubleSeconds(absl::Now() - start);
    CADRE_ASSIGN_OR_RETURN(seconds.emplace_back(),
                           timer.SecondsWithoutGaps(1.5 * enqueuing, [&] { return loop.Run(1); }));
  }
  return Median(seconds);
}

// Adds to `line` what the device or a library refused. Errors: why the run counts as failed
// although its steps were executed.
absl::Status ReportFallbacks(const Replica& replica, nlohmann::ordered_json& line) {
  int64_t recordings = 0, convolutions = 0, attentions = 0;
  std::string refusal = "there is no recorder", unfused;
  for (const v1::Fallback& fallback : replica.Fallbacks()) {
    if (fallback.kind() == v1::Fallback::CONVOLUTION) convolutions = fallback.count();
    if (fallback.kind() == v1::Fallback::ATTENTION) {
      attentions = fallback.count();
      unfused = fallback.reason();
    }
    if (fallback.kind() == v1::Fallback::RECORDING) {
      recordings = fallback.count();
      refusal = fallback.reason();
    }
  }
  line["refused_recordings"] = recordings;
  line["fallback_convolutions"] = convolutions;
  line["unfused_attentions"] = attentions;
  if (FLAGS_recordings && (replica.recorder() == nullptr || replica.recorder()->played() == 0)) {
    return absl::InternalError(absl::StrCat("no step was recorded and replayed: ", refusal));
  }
  if (attentions > 0) return absl::InternalError(absl::StrCat("attention is not fused: ", unfused));
  return absl::OkStatus();
}

// Measures the steps of a replica and adds the results to `line`.
absl::Status Measure(Replica& replica, CudaDevice& device, nlohmann::ordered_json& line) {
  StepLoop loop(replica, FLAGS_batch);
  line["parameters"] = ParameterCount(replica);
  replica.set_recordings(false);
  CADRE_ASSIGN_OR_RETURN(const StepTime plain, TimeSteps(replica, device, loop));
  StepTime step = plain;
  if (FLAGS_recordings) {
    replica.set_recordings(true);
    CADRE_ASSIGN_OR_RETURN(step, TimeSteps(replica, device, loop));
    replica.set_recordings(false);
  }
  // Before the timer allocates memory.
  const int64_t peak_bytes = device.peak_bytes();
  CADRE_ASSIGN_OR_RETURN(EventTimer timer, EventTimer::Make(device));
  CADRE_ASSIGN_OR_RETURN(const double kernels, KernelSeconds(replica, loop, timer));
  const StepRecorder* const recorder = replica.recorder();
  line.update({{"samples_per_second", Rounded(FLAGS_batch / step.seconds, 1)},
               {"step_ms", Rounded(step.seconds * 1e3, 3)},
               {"plain_step_ms", Rounded(plain.seconds * 1e3, 3)},
               {"kernels_ms", Rounded(kernels * 1e3, 3)},
               {"gap_share", Rounded(1 - kernels / step.seconds, 4)},
               {"plain_gap_share", Rounded(1 - kernels / plain.seconds, 4)},
               {"graph_launches", recorder == nullptr ? 0 : recorder->played()},
               {"host_waits_per_step", Rounded(step.host_waits, 2)},
               {"peak_bytes", peak_bytes},
               {"first_loss", Rounded(loop.first_loss(), 5)},
               {"last_loss", Rounded(loop.last_loss(), 5)}});
  return ReportFallbacks(replica, line);
}

absl::Status MakeAndMeasure(const v1::RunSpec& spec, const BenchGpu& gpu,
                            nlohmann::ordered_json& line) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, 1));
  const std::vector<std::unique_ptr<Transport>> alone = MakeThreadTransports(1, absl::Minutes(5));
  std::unique_ptr<Transport> data;
  if (const auto connect = gpu.compute->connect_data(); connect != nullptr) {
    CADRE_ASSIGN_OR_RETURN(data, connect(*alone[0]));
  }
  CADRE_ASSIGN_OR_RETURN(const auto replica,
                         Replica::Make(spec, plan, gpu.compute->kernels(), *alone[0],
                                       data == nullptr ? *alone[0] : *data));
  return Measure(*replica, *gpu.device, line);
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch}, {"--steps", FLAGS_steps}}));
  CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = FLAGS_model, .batch = FLAGS_batch}));
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec::Precision precision, PrecisionNamed(FLAGS_precision));
  spec.set_precision(precision);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  CADRE_ASSIGN_OR_RETURN(const BenchGpu gpu, MakeBenchGpu(FLAGS_device, FLAGS_libraries));
  nlohmann::ordered_json line = BenchLine("gpu_step");
  line.update(GpuFields(gpu));
  line.update({{"model", spec.name()},
               {"precision", FLAGS_precision},
               {"batch", FLAGS_batch},
               {"recordings", FLAGS_recordings}});
  const absl::Status measured = MakeAndMeasure(spec, gpu, line);
  if (!measured.ok()) line["failure"] = std::string(measured.message());
  PrintLine(line);
  return measured;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::GpuBenchMain(
      argc, argv, "bench/gpu/gpu_step.cc",
      "bench_gpu_step: measures training steps on a GPU; prints one JSON line.", cadre::Run);
}
