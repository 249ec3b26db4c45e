// The operations that the reference and the CPU back end share: memory, statistics of batch norm,
// dropout of boxes, and running statistics. They are copies, or short loops over small spans, which
// a faster back end could not improve.
//
// Dropout of a box. The random numbers belong to the elements of the whole batch, so a rank's
// region is divided into runs that are contiguous in the sample, too, and Dropout is called for
// each run with the number of its first element. The result does not depend on how the batch is
// divided.
#include "kernels/host_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "base/vector_loop.h"
#include "glog/logging.h"
#include "tensor/elements.h"
#include "tensor/reduce.h"

namespace cadre {
namespace {

CADRE_VECTOR_LOOP void Convert(size_t n, const Bf16* x, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = ToFloat(x[i]);
}
CADRE_VECTOR_LOOP void Convert(size_t n, const float* x, Bf16* y) {
  for (size_t i = 0; i < n; ++i) y[i] = RoundToBf16(x[i]);
}

// The outermost dimension of `here` along which elements are contiguous in `whole`, too, and the
// elements in such a run.
int InnerDimension(const Shape& whole, const Shape& here, int64_t* run) {
  int inner = whole.rank() - 1;
  *run = here[inner];
  while (inner > 1 && here[inner] == whole[inner]) *run *= here[--inner];
  return inner;
}

}  // namespace

absl::Status HostBackend::CheckPrecision(Precision precision) const {
  if (precision == Precision::kTf32) {
    return absl::InvalidArgumentError("precision TF32 needs a CUDA device; give FP32");
  }
  if (precision == Precision::kBf16 && !without_bf16_.empty()) {
    return absl::InvalidArgumentError(without_bf16_);
  }
  return absl::OkStatus();
}

absl::Status HostBackend::SetPrecision(Precision precision) {
  CADRE_RETURN_IF_ERROR(CheckPrecision(precision));
  precision_ = precision;
  return absl::OkStatus();
}

void HostMemoryBase::Copy(ConstValues x, Values y) {
  CHECK_EQ(x.size(), y.size());
  if (x.empty() || x.data() == y.data()) return;
  if (x.type() == y.type()) {
    std::memcpy(y.data(), x.data(), y.bytes());
  } else if (y.type() == DType::kFloat32) {
    Convert(x.size(), Data<Bf16>(x), Data<float>(y));
  } else {
    Convert(x.size(), Data<float>(x), Data<Bf16>(y));
  }
}

void HostMemoryBase::Zero(Values y) {
  if (!y.empty()) std::memset(y.data(), 0, y.bytes());
}

void HostMemoryBase::CopyRuns(int64_t rows, int64_t run, ConstValues x, int64_t x_step, Values y,
                              int64_t y_step) {
  ByType(y.type(), [&](auto zero) {
    using T = decltype(zero);
    const T* const from = Data<T>(x);
    T* const to = Data<T>(y);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy(from + i * x_step, from + i * x_step + run, to + i * y_step);
    }
  });
}

void HostMemoryBase::CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                             const Box& region) {
  cadre::CopyBox(from, from_box, to, to_box, region);
}

void HostMemoryBase::AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
                            const Box& region) {
  cadre::AddBox(from, from_box, to, to_box, region);
}

void HostMemoryBase::AccumulateReceived(DType type, std::span<std::byte> sum,
                                        std::span<const std::byte> values) {
  CHECK_EQ(sum.size(), values.size());
  SumOf(type).add(sum.data(), values.data(), sum.size());
}

bool HostMemoryBase::AllFinite(ConstValues x) {
  bool finite = true;
  ByType(x.type(), [&](auto zero) {
    using T = decltype(zero);
    finite = std::all_of(Data<T>(x), Data<T>(x) + x.size(),
                         [](T value) { return std::isfinite(ToFloat(value)); });
  });
  return finite;
}

void HostPointwiseBase::DropoutBox(const DropoutKey& key, const Shape& whole, const Box& box,
                                   ConstValues x, Values y) {
  const Shape here = box.shape();
  if (here.elements() == 0) return;
  int64_t run = 0;
  // Elements along `inner` are neighbours in the sample, too.
  const int inner = InnerDimension(whole, here, &run);
  int64_t sample_elements = 1;
  for (int d = 1; d < whole.rank(); ++d) sample_elements *= whole[d];
  std::vector<int64_t> at(box.begin.size());
  for (int64_t i = 0; i < here.elements() / run; ++i) {
    at = box.begin;
    int64_t rest = i;
    for (int d = inner - 1; d >= 0; --d) {
      at[d] += rest % here[d];
      rest /= here[d];
    }
    int64_t element = 0;
    for (int d = 1; d < whole.rank(); ++d) element = element * whole[d] + at[d];
    const int64_t number = (position_ + at[0]) * sample_elements + element;
    const int64_t offset = i * run;
    Dropout(key, number, x.subspan(offset, run), y.subspan(offset, run));
  }
}

// The variance is E[x^2] - E[x]^2 in double, clamped at 0: rounding may make it slightly negative
// for channels that are constant.
void HostNormBase::BatchNormStatistics(int64_t rows, float epsilon, double share,
                                       std::span<const double> sums, FloatSpan mean,
                                       FloatSpan inverse, FloatSpan running_mean,
                                       FloatSpan running_variance) {
  const double counted = std::max<int64_t>(1, rows);
  // The running variance estimates the variance of the population from which the batch is drawn.
  const double unbiased = rows > 1 ? counted / (counted - 1) : 1.0;
  const size_t channels = mean.size();
  for (size_t c = 0; c < channels; ++c) {
    const double average = sums[c] / counted;
    const double variance = std::max(0.0, sums[channels + c] / counted - average * average);
    mean[c] = average;
    inverse[c] = 1.0 / std::sqrt(variance + static_cast<double>(epsilon));
    running_mean[c] = share * average;
    running_variance[c] = share * unbiased * variance;
  }
}

void HostNormBase::BatchNormInverse(float epsilon, ConstFloatSpan variance, FloatSpan inverse) {
  for (size_t c = 0; c < variance.size(); ++c) {
    inverse[c] = 1.0 / std::sqrt(static_cast<double>(variance[c]) + static_cast<double>(epsilon));
  }
}

void StoreHalves(std::span<const double> sums, FloatSpan first, FloatSpan second) {
  for (size_t i = 0; i < first.size(); ++i) first[i] = sums[i];
  for (size_t i = 0; i < second.size(); ++i) second[i] = sums[first.size() + i];
}

std::vector<float> MeansOf(std::span<const double> sums, int64_t rows) {
  const double counted = std::max<int64_t>(1, rows);
  std::vector<float> means(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) means[i] = sums[i] / counted;
  return means;
}

void HostPointwiseBase::SoftmaxCrossEntropyAsync(int64_t rows, int64_t classes, float smoothing,
                                                 ConstValues x, std::span<const int32_t> labels,
                                                 float scale, Values dx, std::span<double> sums) {
  const LossSums found = SoftmaxCrossEntropy(rows, classes, smoothing, x, labels, scale, dx);
  sums[0] = found.loss;
  sums[1] = found.correct;
}

void HostOptimizerBase::DrawTowards(float momentum, ConstFloatSpan batch, FloatSpan w) {
  for (size_t i = 0; i < w.size(); ++i) w[i] += momentum * (batch[i] - w[i]);
}

}  // namespace cadre
