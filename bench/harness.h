// The measuring loop, the output line and the main function that the benchmark programs share.
//
// Thread-compatible.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace cadre {

// The measuring effort per variant. No round begins after `seconds` of measured time, but at least
// one is run.
struct Effort {
  int rounds = 11;
  double seconds = 2;
};

struct Timing {
  // Seconds of one iteration: the median and the minimum over the rounds.
  double seconds = 0;
  double min_seconds = 0;
  int rounds = 0;
  // Iterations of one round.
  int iterations = 0;
};

// Runs the measured work `iterations` times and returns the total seconds. If several ranks measure
// together, each returns the time of the slowest rank, so that all make the same decisions.
using TimedRun = std::function<absl::StatusOr<double>(int iterations)>;

// Times the variants in interleaved rounds: each round runs every variant once and begins with
// another one, so that a disturbance of the machine affects all variants equally, and ratios of
// medians are valid even if absolute times are not. In a round, a variant runs for about 5 ms, and
// at least one iteration. Returns one timing for each variant, in order. Errors: those of the
// variants.
absl::StatusOr<std::vector<Timing>> MeasureInterleaved(const std::vector<TimedRun>& variants,
                                                       const Effort& effort);

// Times one function that cannot fail, on the host's monotonic clock.
Timing Measure(const std::function<void()>& work, const Effort& effort = {});

// Wall-clock seconds of one call.
double SecondsOf(const std::function<void()>& work);

// Processor time of all threads of this process, and of this thread, up to now.
double ProcessorSeconds();
double ThreadSeconds();

// The first fields of an output line: the name of the benchmark, the CPU that it ran on, and the
// instruction sets of that CPU on which the speed of products depends.
nlohmann::ordered_json BenchLine(const std::string& bench);

// Prints one line on stdout and flushes it.
void PrintLine(const nlohmann::ordered_json& line);

// `value` with at most `digits` decimal places, for output lines.
double Rounded(double value, int digits);

// Errors: InvalidArgument naming the first flag with a value below 1.
absl::Status RequirePositive(const std::vector<std::pair<const char*, double>>& flags);

// Main function of a benchmark program: parses the flags (--help lists those of `source`), calls
// `run` and prints its error as "PROGRAM: message". Returns the exit code: 0; 2 for a wrong flag
// (InvalidArgument); `exit_code` of other errors.
int BenchMain(
    int argc, char** argv, const char* source, const char* usage,
    const std::function<absl::Status()>& run,
    const std::function<int(const absl::Status&)>& exit_code = [](const absl::Status&) {
      return 1;
    });

}  // namespace cadre
