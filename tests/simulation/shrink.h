// Finds a small set of faults that still breaks an invariant (delta debugging: A. Zeller, R.
// Hildebrandt, "Simplifying and isolating failure-inducing input", 2002).
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <vector>

#include "tests/simulation/simulator.h"

namespace cadre::simulation {

// Numbers of faults of `options` that are sufficient for a violation, after at most `max_runs`
// simulations; no single one of them can be left out unless that limit was reached. Requires:
// `options` gives the violating `outcome`.
std::vector<size_t> Shrink(const SimulatorOptions& options, const Outcome& outcome, int max_runs);

}  // namespace cadre::simulation
