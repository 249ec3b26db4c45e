// Initial values are a pure function of seed, parameter and position: a counter-based generator
// gives element i of parameter t without the elements before it. Thus every rank computes its part
// without communication, and the values do not depend on the plan.
#include "model/initial_value.h"

#include <algorithm>

#include "base/random.h"

namespace cadre {

void FillInitialValues(const ParameterIndex& index, uint64_t seed, int64_t begin,
                       std::span<float> out) {
  const int64_t end = begin + std::ssize(out);
  for (const v1::Range& range : index.RangesOf(begin, end)) {
    const Parameter& parameter = index[range.tensor()];
    float* to = out.data() + (parameter.offset + range.begin() - begin);
    const uint64_t count = range.end() - range.begin();
    if (parameter.initial_stddev == 0) {
      std::fill(to, to + count, parameter.initial_value);
      continue;
    }
    const float stddev = parameter.initial_stddev;
    for (uint64_t i = 0; i < count; ++i) {
      to[i] = stddev *
              RandomNormal(seed, RandomStream::kInitialWeights, range.tensor(), range.begin() + i);
    }
  }
}

}  // namespace cadre
