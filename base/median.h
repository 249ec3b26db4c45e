// The middle of what was measured: one slow or fast reading among many does not move it.
//
// Thread-safe (a pure function).
#pragma once

#include <vector>

namespace cadre {

// Of an even number, the mean of the two in the middle; of none, 0.
double Median(std::vector<double> values);

}  // namespace cadre
