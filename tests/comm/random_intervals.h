// Random intervals for reduce-scatter and all-gather.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/interval.h"

namespace cadre {

// One interval per member in [0, elements): of any size, some empty, in any order, with gaps.
template <typename Generator>
std::vector<Interval> RandomIntervals(Generator& random, int64_t elements, int members) {
  std::vector<int64_t> borders = {0, elements};
  const int count = members + random() % 4;
  for (int i = 1; i < count; ++i) {
    const int64_t border = random() % (elements + 1);
    borders.push_back(random() % 4 == 0 ? borders.back() : border);
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Interval> intervals;
  for (size_t i = 1; i < borders.size(); ++i) intervals.push_back({borders[i - 1], borders[i]});
  if (random() % 2 == 0) std::shuffle(intervals.begin(), intervals.end(), random);
  intervals.resize(members);
  return intervals;
}

}  // namespace cadre
