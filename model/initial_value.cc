#include "model/initial_value.h"

#include <algorithm>

#include "base/random.h"

namespace cadre {

void FillInitialValues(const ParameterIndex& index, uint64_t seed, int64_t begin,
                       std::span<float> out) {
  const auto end = begin + static_cast<int64_t>(out.size());
  for (const v1::Range& range : index.RangesOf(begin, end)) {
    const Parameter& parameter = index[range.tensor()];
    float* to = out.data() + (parameter.offset + static_cast<int64_t>(range.begin()) - begin);
    const auto count = range.end() - range.begin();
    if (parameter.initial_stddev == 0) {
      std::fill(to, to + count, parameter.initial_value);
      continue;
    }
    const auto stddev = static_cast<float>(parameter.initial_stddev);
    for (uint64_t i = 0; i < count; ++i) {
      to[i] = stddev *
              RandomNormal(seed, RandomStream::kInitialWeights, range.tensor(), range.begin() + i);
    }
  }
}

}  // namespace cadre
