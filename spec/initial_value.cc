#include "spec/initial_value.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace cadre {

void FillInitialValues(const ParameterIndex& index, uint64_t seed, int64_t begin,
                       std::span<float> out) {
  const auto end = begin + static_cast<int64_t>(out.size());
  const int last_layer = index.parameters().empty() ? 0 : index.parameters().back().layer;
  for (const v1::Range& range : index.RangesOf(begin, end)) {
    const Parameter& parameter = index[static_cast<int>(range.tensor())];
    float* to = out.data() + (parameter.offset + static_cast<int64_t>(range.begin()) - begin);
    const auto count = range.end() - range.begin();
    if (parameter.is_bias) {
      std::fill(to, to + count, 0.0F);
      continue;
    }
    const double gain = parameter.layer == last_layer ? 1.0 : 2.0;
    const auto scale = static_cast<float>(
        std::sqrt(gain / static_cast<double>(std::max<int64_t>(1, parameter.fan_in))));
    for (uint64_t i = 0; i < count; ++i) {
      to[i] = scale *
              RandomNormal(seed, RandomStream::kInitialWeights, range.tensor(), range.begin() + i);
    }
  }
}

}  // namespace cadre
