// Measures the time of a training step on a GPU, and prints one JSON line on stdout with three
// times: with recordings (CUDA graphs), without them, and of the step's kernels alone. The latter
// are enqueued while the GPU is busy with other work, so that they follow one another without a
// gap; the rest of a step is launch gaps and waits.
//
//   bench_gpu_step --model resnet50 --batch 256 --precision bf16
//   bench_gpu_step --model gpt --batch 64 --precision tf32 --recordings=false
//
// A step is the copy of the batch from the host to the GPU, forward, loss, backward and SGD with
// momentum. bench/gpu/gpu_step.py runs it alternately with PyTorch. Without a GPU the exit code is
// 3, after a message with the reason.
#include <gflags/gflags.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/median.h"
#include "base/status.h"
#include "bench/gpu/event_timer.h"
#include "bench/gpu/gpu_setup.h"
#include "bench/harness.h"
#include "bench/training.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"
#include "worker/transport/thread_transport.h"

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

struct Measured {
  double recorded_step = 0, plain_step = 0, kernels = 0;
  int64_t played = 0;
  double waits = 0;
  double first_loss = 0, last_loss = 0;
  int64_t parameters = 0;
  int64_t peak_bytes = 0;
};

absl::StatusOr<v1::RunSpec::Precision> PrecisionNamed(const std::string& name) {
  if (name == "fp32") return v1::RunSpec::FP32;
  if (name == "tf32") return v1::RunSpec::TF32;
  if (name == "bf16") return v1::RunSpec::BF16;
  return absl::InvalidArgumentError(
      absl::StrCat("--precision must be fp32, tf32 or bf16, not ", name));
}

// The steps of one replica. All share one counter, so that no two steps have the same number, which
// recorded steps read from memory.
class StepBench {
 public:
  StepBench(CudaDevice& device, EventTimer& timer, Replica& replica)
      : device_(device), timer_(timer), replica_(replica), batch_(replica, FLAGS_batch) {}

  absl::Status Run(Measured* measured) {
    replica_.set_recordings(false);
    CADRE_RETURN_IF_ERROR(Times(&measured->plain_step));
    CADRE_RETURN_IF_ERROR(Kernels(&measured->kernels));
    if (FLAGS_recordings) {
      replica_.set_recordings(true);
      const int64_t waits = device_.host_syncs();
      CADRE_RETURN_IF_ERROR(Times(&measured->recorded_step));
      measured->waits = static_cast<double>(device_.host_syncs() - waits) /
                        static_cast<double>(FLAGS_warmup + FLAGS_steps);
      if (replica_.recorder() != nullptr) measured->played = replica_.recorder()->played();
    }
    measured->first_loss = first_loss_;
    measured->last_loss = last_loss_;
    return absl::OkStatus();
  }

 private:
  absl::Status Step() {
    const BatchView view = batch_.View(FLAGS_batch, step_++);
    CADRE_ASSIGN_OR_RETURN(const LossPart loss,
                           replica_.Step({&view, 1}, kBenchRate, /*gather=*/true));
    last_loss_ = loss.loss / static_cast<double>(std::max<int64_t>(1, loss.samples));
    if (step_ == 1) first_loss_ = last_loss_;
    return absl::OkStatus();
  }

  // Median time between the returns of two consecutive steps.
  absl::Status Times(double* median) {
    for (int i = 0; i < FLAGS_warmup; ++i) CADRE_RETURN_IF_ERROR(Step());
    CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
    std::vector<double> seconds;
    absl::Time before = absl::Now();
    for (int i = 0; i < FLAGS_steps; ++i) {
      CADRE_RETURN_IF_ERROR(Step());
      const absl::Time now = absl::Now();
      seconds.push_back(absl::ToDoubleSeconds(now - before));
      before = now;
    }
    CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
    *median = Median(seconds);
    return absl::OkStatus();
  }

  // Median time of the kernels of a step alone. A step without recordings first gives the time that
  // the host needs to enqueue one; the timer then keeps the device busy for longer than that.
  absl::Status Kernels(double* median) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
      // Enqueuing takes less time than a step without recordings.
      double enqueuing = 0;
      const absl::Time start = absl::Now();
      CADRE_RETURN_IF_ERROR(Step());
      CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
      enqueuing = absl::ToDoubleSeconds(absl::Now() - start);
      CADRE_ASSIGN_OR_RETURN(const double taken,
                             timer_.SecondsWithoutGaps(1.5 * enqueuing, [&] { return Step(); }));
      seconds.push_back(taken);
    }
    *median = Median(seconds);
    return absl::OkStatus();
  }

  CudaDevice& device_;
  EventTimer& timer_;
  Replica& replica_;
  const RandomBatch batch_;
  int64_t step_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
};

absl::StatusOr<Measured> Train(const v1::RunSpec& spec, BenchGpu& gpu) {
  CADRE_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(spec, 1));
  const std::vector<std::unique_ptr<Transport>> alone = MakeThreadTransports(1, absl::Minutes(5));
  std::unique_ptr<Transport> data;
  if (const auto connect = gpu.compute->connect_data(); connect != nullptr) {
    CADRE_ASSIGN_OR_RETURN(data, connect(*alone[0]));
  }
  Backend& kernels = gpu.compute->kernels();
  CADRE_ASSIGN_OR_RETURN(const auto replica, Replica::Make(spec, plan, kernels, *alone[0],
                                                           data == nullptr ? *alone[0] : *data));
  CADRE_ASSIGN_OR_RETURN(EventTimer timer, EventTimer::Make(*gpu.device));
  Measured measured;
  CADRE_RETURN_IF_ERROR(StepBench(*gpu.device, timer, *replica).Run(&measured));
  measured.parameters = ParameterCount(*replica);
  measured.peak_bytes = gpu.device->peak_bytes();
  return measured;
}

absl::Status Run() {
  CADRE_RETURN_IF_ERROR(RequirePositive({{"--batch", FLAGS_batch}, {"--steps", FLAGS_steps}}));
  CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec, BenchSpec({.model = FLAGS_model, .batch = FLAGS_batch}));
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec::Precision precision, PrecisionNamed(FLAGS_precision));
  spec.set_precision(precision);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  CADRE_ASSIGN_OR_RETURN(BenchGpu gpu, MakeBenchGpu(FLAGS_device, FLAGS_libraries));
  CADRE_ASSIGN_OR_RETURN(const Measured m, Train(spec, gpu));
  const double step = FLAGS_recordings ? m.recorded_step : m.plain_step;
  nlohmann::ordered_json line = BenchLine("gpu_step");
  line.update({{"device", gpu.compute->name()},
               {"cuda", DescribeGpu(*gpu.device)},
               {"model", FLAGS_model},
               {"precision", FLAGS_precision},
               {"batch", FLAGS_batch},
               {"parameters", m.parameters},
               {"samples_per_second", Rounded(FLAGS_batch / step, 1)},
               {"step_ms", Rounded(step * 1e3, 3)},
               {"plain_step_ms", Rounded(m.plain_step * 1e3, 3)},
               {"kernels_ms", Rounded(m.kernels * 1e3, 3)},
               {"gap_share", Rounded(1 - m.kernels / step, 4)},
               {"plain_gap_share", Rounded(1 - m.kernels / m.plain_step, 4)},
               {"recordings", FLAGS_recordings},
               {"halves_played", m.played},
               {"host_waits_per_step", Rounded(m.waits, 2)},
               {"first_loss", Rounded(m.first_loss, 5)},
               {"last_loss", Rounded(m.last_loss, 5)},
               {"peak_bytes", m.peak_bytes}});
  PrintLine(line);
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  return cadre::BenchMain(argc, argv, "bench/gpu/gpu_step.cc",
                          "bench_gpu_step: measures training steps on a GPU; prints one JSON line.",
                          cadre::Run, cadre::kNoGpu);
}
