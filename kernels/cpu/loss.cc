// The loss is a few rows of a few classes; exactness is worth more than speed here, so exponentials
// and sums are taken in double.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/extents.h"

namespace cadre {

Kernels::LossSums CpuKernels::SoftmaxCrossEntropy(int64_t rows, int64_t classes,
                                                  std::span<const float> x,
                                                  std::span<const int32_t> labels, float scale,
                                                  std::span<float> dx) {
  CheckSize("x", x.size(), rows * classes);
  CheckSize("labels", labels.size(), rows);
  if (!dx.empty()) CheckSize("dx", dx.size(), rows * classes);
  LossSums sums;
  std::vector<double> exponentials(static_cast<size_t>(classes));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * classes;
    const int32_t label = labels[static_cast<size_t>(r)];
    CHECK(label >= 0 && label < classes) << "label " << label << " of " << classes << " classes";
    const float* largest = std::max_element(row, row + classes);
    double total = 0;
    for (int64_t c = 0; c < classes; ++c) {
      // Shifted by the largest, no exponential overflows and one of them is 1.
      total += exponentials[static_cast<size_t>(c)] =
          std::exp(static_cast<double>(row[c]) - static_cast<double>(*largest));
    }
    sums.loss += std::log(total) + static_cast<double>(*largest) - static_cast<double>(row[label]);
    sums.correct += largest - row == label ? 1 : 0;
    if (dx.empty()) continue;
    float* gradient = dx.data() + r * classes;
    for (int64_t c = 0; c < classes; ++c) {
      const double share = exponentials[static_cast<size_t>(c)] / total;
      gradient[c] = static_cast<float>(scale * (c == label ? share - 1 : share));
    }
  }
  return sums;
}

}  // namespace cadre
