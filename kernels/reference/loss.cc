#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"

namespace cadre {

LossSums ReferencePointwise::SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                                 ConstValues x_values,
                                                 std::span<const int32_t> labels, float scale,
                                                 Values dx_values) {
  const auto x = x_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), SizeOf(RowsDims{.rows = rows, .channels = classes}));
  CheckSize("labels", labels.size(), rows);
  CheckSizeIfAny("dx", dx.size(), rows * classes);
  const double elsewhere = static_cast<double>(smoothing) / static_cast<double>(classes);
  LossSums sums;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = x.subspan(r * classes, classes);
    const int32_t label = labels[r];
    CHECK(label >= 0 && label < classes) << "label " << label;
    const auto largest = std::max_element(row.begin(), row.end());
    sums.correct += largest - row.begin() == label ? 1 : 0;
    double total = 0;
    for (const float value : row) total += std::exp(static_cast<double>(value) - *largest);
    for (int64_t c = 0; c < classes; ++c) {
      const double log_p = static_cast<double>(row[c]) - *largest - std::log(total);
      const double target = elsewhere + (c == label ? 1.0 - smoothing : 0.0);
      if (target > 0) sums.loss -= target * log_p;
      if (!dx.empty()) {
        dx[r * classes + c] = static_cast<float>(scale * (std::exp(log_p) - target));
      }
    }
  }
  return sums;
}

}  // namespace cadre
