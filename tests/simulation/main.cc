// cadre-sim: runs simulations of a cluster, each of which is determined by its seed.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gflags/gflags.h"
#include "tests/simulation/shrink.h"
#include "tests/simulation/simulator.h"

DEFINE_uint64(seed, 1, "first seed");
DEFINE_uint64(seeds, 1, "number of consecutive seeds");
DEFINE_double(minutes, 0, "virtual minutes with faults; 0: chosen by the seed");
DEFINE_bool(verbose, false, "print the event log");
DEFINE_string(only_faults, "", "numbers of the faults to inject, such as 3,7; empty: all");
DEFINE_int32(plant, 0, "number of a planted bug (Plant); 0: none");
DEFINE_int32(shrink_runs, 200, "maximum number of simulations to find the faults that matter");

namespace cadre::simulation {
namespace {

std::optional<std::vector<size_t>> OnlyFaults() {
  if (FLAGS_only_faults.empty()) return std::nullopt;
  std::vector<size_t> numbers;
  for (const absl::string_view text : absl::StrSplit(FLAGS_only_faults, ',')) {
    size_t number = 0;
    if (absl::SimpleAtoi(text, &number)) numbers.push_back(number);
  }
  return numbers;
}

void PrintFaultsThatMatter(const SimulatorOptions& options, const Outcome& outcome) {
  const std::vector<size_t> needed = Shrink(options, outcome, FLAGS_shrink_runs);
  for (const size_t number : needed) {
    absl::PrintF("fault %u: %s\n", number, outcome.fault_texts[number]);
  }
  // No fault has the number of all faults.
  const std::string list =
      needed.empty() ? absl::StrCat(outcome.faults.size()) : absl::StrJoin(needed, ",");
  absl::PrintF("repeat it: cadre-sim --seed %u --only-faults %s --verbose\n", options.seed, list);
}

int RunSeeds() {
  std::map<std::string, uint64_t> counters;
  uint64_t events = 0;
  absl::Duration simulated;
  const absl::Time begin = absl::Now();
  for (uint64_t seed = FLAGS_seed; seed < FLAGS_seed + FLAGS_seeds; ++seed) {
    SimulatorOptions options{.seed = seed,
                             .faults_for = absl::Seconds(FLAGS_minutes * 60),
                             .plant = static_cast<Plant>(FLAGS_plant),
                             .only_faults = OnlyFaults()};
    if (FLAGS_verbose) {
      options.on_line = [](const std::string& line) { absl::PrintF("%s\n", line); };
    }
    const Outcome outcome = Simulator(options).Run();
    for (const auto& [name, value] : outcome.counters) counters[name] += value;
    events += outcome.events;
    simulated += outcome.at;
    if (outcome.violation.empty()) continue;
    if (!FLAGS_verbose) {
      for (const std::string& line : LastLines(options)) absl::PrintF("%s\n", line);
    }
    absl::PrintF("seed %u, event %u, after %s: %s\n", seed, outcome.events,
                 absl::FormatDuration(outcome.at), outcome.violation);
    if (!FLAGS_verbose) PrintFaultsThatMatter(options, outcome);
    return 1;
  }
  for (const auto& [name, value] : counters) {
    absl::PrintF("%-36s %12u\n", name, value);
  }
  absl::PrintF("%u seeds, %u events, %s of virtual time in %s\n", FLAGS_seeds, events,
               absl::FormatDuration(simulated), absl::FormatDuration(absl::Now() - begin));
  return 0;
}

}  // namespace
}  // namespace cadre::simulation

int main(int argc, char** argv) {
  gflags::SetUsageMessage("runs simulations of a cluster from their seeds");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return cadre::simulation::RunSeeds();
}
