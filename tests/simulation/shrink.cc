#include "tests/simulation/shrink.h"

#include <algorithm>
#include <numeric>

namespace cadre::simulation {

std::vector<size_t> Shrink(const SimulatorOptions& options, const Outcome& outcome, int max_runs) {
  std::vector<size_t> needed(outcome.faults.size());
  std::iota(needed.begin(), needed.end(), 0);
  if (options.only_faults) needed = *options.only_faults;
  const auto violates = [&](const std::vector<size_t>& faults) {
    --max_runs;
    SimulatorOptions fewer = options;
    fewer.on_line = nullptr;
    fewer.only_faults = faults;
    return !Simulator(fewer).Run().violation.empty();
  };
  // Leaves out intervals of faults, then smaller ones.
  size_t length = std::max<size_t>(1, needed.size() / 2);
  while (!needed.empty() && max_runs > 0) {
    bool removed = false;
    for (size_t begin = 0; begin < needed.size() && max_runs > 0;) {
      std::vector<size_t> rest = needed;
      rest.erase(rest.begin() + begin, rest.begin() + std::min(begin + length, rest.size()));
      if (violates(rest)) {
        needed = std::move(rest);
        removed = true;
      } else {
        begin += length;
      }
    }
    if (length == 1 && !removed) break;
    length = std::max<size_t>(1, length / 2);
  }
  return needed;
}

}  // namespace cadre::simulation
