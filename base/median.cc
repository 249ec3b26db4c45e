#include "base/median.h"

#include <algorithm>
#include <cstddef>

namespace cadre {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + (values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  // nth_element leaves the lower half unordered, so the other middle value is its maximum.
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace cadre
