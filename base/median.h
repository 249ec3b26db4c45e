// The median, which is robust against outliers among measurements.
//
// Thread-safe (a pure function).
#pragma once

#include <vector>

namespace cadre {

// For an even number of values, the mean of the middle two. 0 if there are no values.
double Median(std::vector<double> values);

}  // namespace cadre
