// The median, which is robust against outliers among measurements.
//
// Thread-safe (a pure function).
#pragma once

#include <vector>

namespace cadre {

// The mean of the middle two for an even number of values; 0 for none.
double Median(std::vector<double> values);

}  // namespace cadre
