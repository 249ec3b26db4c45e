// How long a training step takes on a GPU, as one JSON line on stdout: with recordings (CUDA
// graphs) and without, and beside both the same step's kernels alone: enqueued while the card is
// kept busy with something else, so that they follow one another without a gap. What a step takes
// beyond that is launch gaps and waits.
//
//   bench_gpu_step --model resnet50 --batch 256 --precision bf16
//   bench_gpu_step --model gpt --batch 64 --precision tf32 --recordings=false
//
// A step is the batch's way from the host's memory to the card, forward, loss, backward and SGD
// with momentum. bench/gpu/gpu_step.py runs it in turns with PyTorch. Needs a GPU; ends with exit
// code 3, saying why, where there is none.
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/median.h"
#include "base/status.h"
#include "bench/gpu/event_timer.h"
#include "bench/gpu/gpu_setup.h"
#include "bench/training_setup.h"
#include "plan/search/planner.h"
#include "worker/train/replica.h"
#include "worker/transport/thread_transport.h"

DEFINE_string(device, "cuda", "Which device: cuda or cuda:N.");
DEFINE_string(libraries, "",
              "Folders to look into first for cuBLAS, cuDNN and NCCL; commas between.");
DEFINE_string(model, "resnet50", "A model of the zoo, or a *.textproto run spec.");
DEFINE_string(zoo, "model/zoo", "Folder of the zoo's specs.");
DEFINE_string(precision, "bf16", "fp32, tf32 or bf16.");
DEFINE_int32(batch, 64, "Samples of a step.");
DEFINE_int32(steps, 20, "Steps that are timed; the median counts.");
DEFINE_int32(warmup, 6, "Steps before that are not: they choose algorithms and record.");
DEFINE_bool(recordings, true, "Play steps from recordings; the other way is measured in any case.");

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
  return absl::InvalidArgumentError(absl::StrCat("--precision: fp32, tf32 or bf16, not ", name));
}

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

  // The median step, from one return to the next.
  absl::Status Times(double* median) {
    for (int i = 0; i < FLAGS_warmup; ++i) CADRE_RETURN_IF_ERROR(Step());
    CADRE_RETURN_IF_ERROR(replica_.Settle());
    std::vector<double> seconds;
    absl::Time before = absl::Now();
    for (int i = 0; i < FLAGS_steps; ++i) {
      CADRE_RETURN_IF_ERROR(Step());
      const absl::Time now = absl::Now();
      seconds.push_back(absl::ToDoubleSeconds(now - before));
      before = now;
    }
    CADRE_RETURN_IF_ERROR(replica_.Settle());
    *median = Median(seconds);
    return absl::OkStatus();
  }

  absl::Status Kernels(double* median) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      CADRE_RETURN_IF_ERROR(replica_.Settle());
      // Enqueuing takes less than a step of which nothing is recorded.
      double enqueuing = 0;
      const absl::Time start = absl::Now();
      CADRE_RETURN_IF_ERROR(Step());
      CADRE_RETURN_IF_ERROR(replica_.Settle());
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
  for (const Parameter& parameter : replica->index().parameters()) {
    if (!IsStatistic(parameter.role)) measured.parameters += parameter.shape.elements();
  }
  measured.peak_bytes = gpu.device->peak_bytes();
  return measured;
}

absl::StatusOr<std::string> Run() {
  CADRE_ASSIGN_OR_RETURN(v1::RunSpec spec,
                         BenchSpec({.zoo = FLAGS_zoo, .model = FLAGS_model, .batch = FLAGS_batch}));
  CADRE_ASSIGN_OR_RETURN(const v1::RunSpec::Precision precision, PrecisionNamed(FLAGS_precision));
  spec.set_precision(precision);
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  CADRE_ASSIGN_OR_RETURN(
      BenchGpu gpu,
      MakeBenchGpu(FLAGS_device, absl::StrSplit(FLAGS_libraries, ',', absl::SkipEmpty())));
  CADRE_ASSIGN_OR_RETURN(const Measured m, Train(spec, gpu));
  const double step = FLAGS_recordings ? m.recorded_step : m.plain_step;
  return absl::StrFormat(
      R"({"bench":"gpu_step","device":"%s","cuda":"%s","model":"%s","precision":"%s","batch":%d,)"
      R"("parameters":%d,"samples_per_second":%.1f,"step_ms":%.3f,"plain_step_ms":%.3f,)"
      R"("kernels_ms":%.3f,"gap_share":%.4f,"plain_gap_share":%.4f,"recordings":%s,)"
      R"("halves_played":%d,"host_waits_per_step":%.2f,"first_loss":%.5f,"last_loss":%.5f,)"
      R"("peak_bytes":%d})",
      gpu.compute->name(), DescribeGpu(*gpu.device), FLAGS_model, FLAGS_precision, FLAGS_batch,
      m.parameters, FLAGS_batch / step, step * 1e3, m.plain_step * 1e3, m.kernels * 1e3,
      1 - m.kernels / step, 1 - m.kernels / m.plain_step, FLAGS_recordings ? "true" : "false",
      m.played, m.waits, m.first_loss, m.last_loss, m.peak_bytes);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::SetUsageMessage(
      "Measures training steps on a GPU. Prints one JSON line; exit code 3 without a GPU.");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_batch < 1 || FLAGS_steps < 1 || FLAGS_warmup < 0) {
    std::fprintf(stderr, "--batch and --steps must be at least 1\n");
    return 2;
  }
  const auto line = cadre::Run();
  if (!line.ok()) return cadre::Explain("bench_gpu_step", line.status());
  std::printf("%s\n", line->c_str());
  return 0;
}
