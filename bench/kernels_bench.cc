// How fast one worker's kernels are: every operation of a training step of one model, in the order
// of the step and so with the caches as they are then, as one JSON line on stdout. Rates are
// GFLOP/s where arithmetic counts, GB/s (of the bytes that must move at least) elsewhere; the
// machine's own rates stand beside them.
//
//   bench_kernels --model=resnet18 --batch=16 --threads=1
#include <gflags/gflags.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/kernel_steps.h"
#include "kernels/backend.h"

DEFINE_string(model, "lenet", "lenet, alexnet, vgg11, resnet18 or resnet50");
DEFINE_int32(batch, 32, "samples in a step");
DEFINE_int32(threads, 1, "threads of the kernels");
DEFINE_bool(cpu_time, false,
            "measure time on the processor, on a machine that others use too; needs --threads=1");
DEFINE_int32(steps, 5, "steps that are run; each operation's median counts");

namespace cadre {
namespace {

double Now() {
  timespec now{};
  clock_gettime(FLAGS_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsOf(const std::function<void()>& run) {
  const double start = Now();
  run();
  return Now() - start;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + (values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double MedianSeconds(const std::function<void()>& run) {
  run();  // touches memory
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) seconds.push_back(SecondsOf(run));
  return Median(seconds);
}

// A product of matrices that fit the caches.
double MatrixGflops(Backend& kernels) {
  const FullyConnectedDims d{.batch = 1024, .in = 1024, .out = 1024};
  const std::vector<float> x(1 << 20, 1.0F), w(1 << 20, 1.0F);
  std::vector<float> dx(1 << 20);
  return 2.0 * (1 << 30) / 1e9 /
         MedianSeconds([&] { kernels.dense().FullyConnectedBackwardData(d, x, w, dx); });
}

// y += x over more than the caches hold.
double AddGbs(Backend& kernels) {
  const std::vector<float> x(1 << 26, 1.0F);
  std::vector<float> y(1 << 26);
  return 3.0 * (1 << 28) / 1e9 / MedianSeconds([&] { kernels.pointwise().Add(x, y); });
}

// "12.conv.forward 3x3..." is of the kind "conv.forward".
std::string Kind(const std::string& name) {
  const size_t begin = name.find('.') + 1;
  return name.substr(begin, name.find(' ') - begin);
}

std::string Rate(const Operation& operation, double seconds) {
  if (operation.flop > 0)
    return absl::StrFormat(R"("gflops":%.1f)", operation.flop / seconds / 1e9);
  return absl::StrFormat(R"("gbs":%.1f)", operation.bytes / seconds / 1e9);
}

std::string Measure(const Step& step, Backend& kernels) {
  const std::vector<Operation> operations = step.Operations();
  std::vector<double> steps;
  std::vector<std::vector<double>> seconds(operations.size());
  for (int i = -1; i < FLAGS_steps; ++i) {
    double total = 0;
    for (size_t o = 0; o < operations.size(); ++o) {
      const double taken = SecondsOf(operations[o].run);
      total += taken;
      if (i >= 0) seconds[o].push_back(taken);  // the first step makes primitives
    }
    if (i >= 0) steps.push_back(total);
  }
  const double whole = Median(steps);
  std::map<std::string, double> kinds;
  std::vector<std::string> each;
  for (size_t o = 0; o < operations.size(); ++o) {
    const double taken = Median(seconds[o]);
    kinds[Kind(operations[o].name)] += taken;
    each.push_back(absl::StrFormat(R"({"op":"%s","ms":%.3f,%s})", operations[o].name, taken * 1e3,
                                   Rate(operations[o], taken)));
  }
  std::vector<std::string> by_kind;
  for (const auto& [kind, taken] : kinds) {
    by_kind.push_back(absl::StrFormat(R"("%s":%.2f)", kind, taken * 1e3));
  }
  return absl::StrFormat(
      R"({"bench":"kernels","model":"%s","batch":%d,"threads":%d,"parameters":%d,)"
      R"("step_ms":%.2f,"samples_per_second":%.1f,"matrix_gflops":%.1f,"add_gbs":%.1f,)"
      R"("kinds_ms":{%s},"operations":[%s]})",
      FLAGS_model, FLAGS_batch, FLAGS_threads, step.parameters(), whole * 1e3, FLAGS_batch / whole,
      MatrixGflops(kernels), AddGbs(kernels), absl::StrJoin(by_kind, ","),
      absl::StrJoin(each, ","));
}

int Run() {
  if (FLAGS_batch < 1 || FLAGS_threads < 1 || FLAGS_steps < 1) {
    absl::FPrintF(stderr, "--batch, --threads and --steps must be at least 1\n");
    return 2;
  }
  if (FLAGS_cpu_time && FLAGS_threads != 1) {
    absl::FPrintF(stderr, "--cpu_time needs --threads=1\n");
    return 2;
  }
  const auto kernels = MakeCpuBackend(FLAGS_threads);
  Step step(*kernels, FLAGS_batch);
  if (!step.Build(FLAGS_model)) {
    absl::FPrintF(stderr, "--model=%s: there are %s\n", FLAGS_model,
                  absl::StrJoin(Step::Models(), ", "));
    return 2;
  }
  absl::PrintF("%s\n", Measure(step, *kernels));
  return 0;
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  return cadre::Run();
}
