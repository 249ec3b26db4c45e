// The loop measures comparable times in three parts:
//
//   calibration  One run of a variant touches its memory and creates its caches; it gives an upper
//                bound for the time of an iteration. Up to three more give the number of iterations
//                of a round, so that a round takes about 5 ms whatever the variant does.
//   rounds       Each round runs all variants once. A disturbance that lasts longer than a round
//                (another process, a change of frequency) slows all variants down equally, so it
//                cancels in the ratio of their medians.
//   statistics   The median ignores the rounds in which a short disturbance happened; the minimum
//                is the time without disturbances.
//
// If a single run of a variant takes a quarter of the effort or more, its calibration ends after
// that run.
#include "bench/harness.h"

#include <gflags/gflags.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hardware.h"
#include "base/median.h"
#include "base/program_flags.h"
#include "base/status.h"

namespace cadre {
namespace {

// Much longer than reading the clock and starting the ranks together takes; much shorter than a
// typical disturbance by another process.
constexpr double kRoundSeconds = 5e-3;
constexpr double kMaxIterations = 1000;

// The calibration and the rounds of one variant.
class VariantRounds {
 public:
  VariantRounds(const TimedRun& run, const Effort& effort) : run_(run), effort_(effort) {}

  // Chooses the number of iterations. The first run touches memory and creates caches, so it gives
  // only an upper bound; further runs follow unless they would exceed the effort.
  absl::Status Calibrate() {
    CADRE_ASSIGN_OR_RETURN(double iteration, run_(1));
    if (iteration < effort_.seconds / 4) {
      const int repeats = iteration < kRoundSeconds ? 3 : 1;
      CADRE_ASSIGN_OR_RETURN(const double seconds, run_(repeats));
      iteration = seconds / repeats;
    }
    const double iterations = std::ceil(kRoundSeconds / std::max(iteration, 1e-9));
    timing_.iterations = static_cast<int>(std::clamp(iterations, 1.0, kMaxIterations));
    return absl::OkStatus();
  }

  absl::Status Round() {
    if (!iteration_seconds_.empty() && spent_ >= effort_.seconds) return absl::OkStatus();
    CADRE_ASSIGN_OR_RETURN(const double seconds, run_(timing_.iterations));
    spent_ += seconds;
    iteration_seconds_.push_back(seconds / timing_.iterations);
    return absl::OkStatus();
  }

  Timing Result() {
    timing_.rounds = static_cast<int>(iteration_seconds_.size());
    timing_.min_seconds = *std::ranges::min_element(iteration_seconds_);
    timing_.seconds = Median(std::move(iteration_seconds_));
    return timing_;
  }

 private:
  const TimedRun& run_;
  const Effort& effort_;
  Timing timing_;
  std::vector<double> iteration_seconds_;
  double spent_ = 0;
};

// Those of the first processor in /proc/cpuinfo on which the speed of products depends; some CPUs
// with the same model name differ in them.
std::vector<std::string> InstructionSets() {
  const std::set<std::string> known = {"avx2",        "fma",      "avx512f",  "avx512_vnni",
                                       "avx512_bf16", "amx_tile", "amx_bf16", "asimd",
                                       "sve",         "bf16",     "i8mm"};
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, "flags") && !absl::StartsWith(line, "Features")) continue;
    std::vector<std::string> sets;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      if (known.contains(std::string(word))) sets.emplace_back(word);
    }
    return sets;
  }
  return {};
}

double SecondsOn(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

}  // namespace

absl::StatusOr<std::vector<Timing>> MeasureInterleaved(const std::vector<TimedRun>& variants,
                                                       const Effort& effort) {
  std::vector<VariantRounds> series;
  for (const TimedRun& run : variants) series.emplace_back(run, effort);
  for (VariantRounds& variant : series) CADRE_RETURN_IF_ERROR(variant.Calibrate());
  for (int round = 0; round < effort.rounds; ++round) {
    // Each round begins with another variant, so that no variant is always measured first.
    for (int turn = 0; turn < std::ssize(series); ++turn) {
      CADRE_RETURN_IF_ERROR(series[(turn + round) % std::ssize(series)].Round());
    }
  }
  std::vector<Timing> timings;
  for (VariantRounds& variant : series) timings.push_back(variant.Result());
  return timings;
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double ProcessorSeconds() { return SecondsOn(CLOCK_PROCESS_CPUTIME_ID); }
double ThreadSeconds() { return SecondsOn(CLOCK_THREAD_CPUTIME_ID); }

Timing Measure(const std::function<void()>& work, const Effort& effort) {
  const TimedRun run = [&](int iterations) {
    return SecondsOf([&] {
      for (int i = 0; i < iterations; ++i) work();
    });
  };
  return MeasureInterleaved({run}, effort)->front();
}

nlohmann::ordered_json BenchLine(const std::string& bench) {
  return {{"bench", bench}, {"cpu", ProcessorName()}, {"instruction_sets", InstructionSets()}};
}

void PrintLine(const nlohmann::ordered_json& line) { std::cout << line.dump() << std::endl; }

double Rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

absl::Status RequirePositive(const std::vector<std::pair<const char*, double>>& flags) {
  for (const auto& [name, value] : flags) {
    if (value < 1) return absl::InvalidArgumentError(absl::StrCat(name, " must be at least 1"));
  }
  return absl::OkStatus();
}

int BenchMain(int argc, char** argv, const char* source, const char* usage,
              const std::function<absl::Status()>& run,
              const std::function<int(const absl::Status&)>& exit_code) {
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  if (const auto code = ParseProgramFlags(usage, CADRE_VERSION, source, &argc, &argv)) return *code;
  const absl::Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitBadFlags : exit_code(status);
}

}  // namespace cadre
