// Softmax cross-entropy with label smoothing (Szegedy et al. 2016), row by row.
//
// The logits are shifted by their maximum before the exponential, so that none overflows and one
// of them is 1. The loss is log(sum) + max - x[label], never log of a probability, which would be
// infinite once it underflows. Sums are taken in double. The gradient is scale * (softmax -
// target), whose value at the label is computed in double, because it is a difference of nearly
// equal numbers as the model becomes certain.
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/threads.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/extents.h"

namespace cadre {
namespace {

CADRE_VECTOR_LOOP float Largest(int64_t n, const float* x) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

CADRE_VECTOR_LOOP double Sum(int64_t n, const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

// Shifted by the largest, no exponential overflows and one of them is 1.
CADRE_VECTOR_LOOP double SumOfExponentials(int64_t n, const float* x, float largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(Exp(x[i] - largest));
  return sum;
}

CADRE_VECTOR_LOOP void Gradient(int64_t n, const float* x, float largest, float share, float off,
                                float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = Exp(x[i] - largest) * share - off;
}

struct RowLoss {
  double loss = 0;
  bool correct = false;
};

// A null dx is not computed.
RowLoss LossOfRow(int64_t classes, double smoothing, const float* x, int32_t label, float scale,
                  float* dx) {
  const float largest = Largest(classes, x);
  const double total = SumOfExponentials(classes, x, largest);
  const double each = smoothing / static_cast<double>(classes);
  double expected = (1 - smoothing) * static_cast<double>(x[label]);
  // Without smoothing, an infinite logit elsewhere must not meet a zero.
  if (smoothing > 0) expected += each * Sum(classes, x);
  RowLoss row{.loss = std::log(total) + static_cast<double>(largest) - expected,
              .correct = x[label] == largest && std::find(x, x + label, largest) == x + label};
  if (dx == nullptr) return row;
  const auto s = static_cast<double>(scale);
  Gradient(classes, x, largest, static_cast<float>(s / total), static_cast<float>(s * each), dx);
  const double at_label = std::exp(static_cast<double>(x[label]) - static_cast<double>(largest));
  dx[label] = static_cast<float>(s * (at_label / total - (1 - smoothing) - each));
  return row;
}

}  // namespace

LossSums CpuPointwise::SoftmaxCrossEntropy(int64_t rows, int64_t classes, float smoothing,
                                           ConstValues x_values, std::span<const int32_t> labels,
                                           float scale, Values dx_values) {
  const auto x = x_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("x", x.size(), rows * classes);
  CheckSize("labels", labels.size(), rows);
  CheckSizeIfAny("dx", dx.size(), rows * classes);
  for (const int32_t label : labels) {
    CHECK(label >= 0 && label < classes) << "label " << label << " of " << classes << " classes";
  }
  std::vector<RowLoss> each(rows);
  // An exponential costs as much as several plain elements.
  ForParts(cpu_.threads, rows, 4 * classes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto at = static_cast<size_t>(r);
      each[at] = LossOfRow(classes, static_cast<double>(smoothing), x.data() + r * classes,
                           labels[at], scale, dx.empty() ? nullptr : dx.data() + r * classes);
    }
  });
  LossSums sums;
  for (const RowLoss& row : each) {
    sums.loss += row.loss;
    sums.correct += row.correct ? 1 : 0;
  }
  return sums;
}

}  // namespace cadre
