// cadre-sim: replays simulations by their seeds.
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gflags/gflags.h"
#include "tests/simulation/simulator.h"

DEFINE_uint64(seed, 1, "first seed");
DEFINE_uint64(seeds, 1, "how many seeds, one after the other");
DEFINE_double(minutes, 0, "virtual minutes of faults; 0: chosen by the seed");
DEFINE_bool(verbose, false, "print the event log");

namespace cadre::simulation {
namespace {

int RunSeeds() {
  std::map<std::string, uint64_t> counters;
  uint64_t events = 0;
  absl::Duration simulated;
  const absl::Time begin = absl::Now();
  for (uint64_t seed = FLAGS_seed; seed < FLAGS_seed + FLAGS_seeds; ++seed) {
    SimulatorOptions options{.seed = seed, .faults_for = absl::Seconds(FLAGS_minutes * 60)};
    if (FLAGS_verbose) {
      options.on_line = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
    }
    const Outcome outcome = Simulator(options).Run();
    for (const auto& [name, value] : outcome.counters) counters[name] += value;
    events += outcome.events;
    simulated += outcome.at;
    if (outcome.violation.empty()) continue;
    if (!FLAGS_verbose) {
      for (const std::string& line : outcome.last_lines) std::printf("%s\n", line.c_str());
    }
    std::printf("seed %llu, event %llu, after %s: %s\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(outcome.events),
                absl::FormatDuration(outcome.at).c_str(), outcome.violation.c_str());
    return 1;
  }
  for (const auto& [name, value] : counters) {
    std::printf("%-36s %12llu\n", name.c_str(), static_cast<unsigned long long>(value));
  }
  std::printf("%llu seeds, %llu events, %s of virtual time in %s\n",
              static_cast<unsigned long long>(FLAGS_seeds), static_cast<unsigned long long>(events),
              absl::FormatDuration(simulated).c_str(),
              absl::FormatDuration(absl::Now() - begin).c_str());
  return 0;
}

}  // namespace
}  // namespace cadre::simulation

int main(int argc, char** argv) {
  gflags::SetUsageMessage("replays simulations of a whole cluster by their seeds");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return cadre::simulation::RunSeeds();
}
