#include <cmath>
#include <numbers>

#include "base/random.h"
#include "kernels/extents.h"
#include "kernels/reference/reference_backend.h"

namespace cadre {
namespace {

// Normal distribution function and density.
double NormalBelow(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double NormalDensity(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }

double Value(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return x * NormalBelow(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
  }
  return x;
}

double Gradient(Activation kind, double seen, double dy) {
  switch (kind) {
    case Activation::kRelu:
      return seen > 0 ? dy : 0;
    case Activation::kGelu:
      return dy * (NormalBelow(seen) + seen * NormalDensity(seen));
    case Activation::kSigmoid:
      return dy * seen * (1 - seen);
    case Activation::kTanh:
      return dy * (1 - seen * seen);
  }
  return dy;
}

}  // namespace

void ReferencePointwise::ActivationForward(Activation kind, ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("y", y.size(), std::ssize(x));
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(Value(kind, x[i]));
}

void ReferencePointwise::ActivationBackward(Activation kind, ConstValues seen_values,
                                            ConstValues dy_values, Values dx_values) {
  const auto seen = seen_values.floats(), dy = dy_values.floats();
  const auto dx = dx_values.floats();
  CheckSize("dy", dy.size(), std::ssize(seen));
  CheckSize("dx", dx.size(), std::ssize(seen));
  for (size_t i = 0; i < seen.size(); ++i) {
    dx[i] = static_cast<float>(Gradient(kind, seen[i], dy[i]));
  }
}

void ReferencePointwise::Dropout(const DropoutKey& key, uint64_t first, ConstValues x_values,
                                 Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("y", y.size(), std::ssize(x));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool keep =
        RandomUniform(key.seed, RandomStream::kDropout, key.layer, first + i) >= key.rate;
    y[i] = keep ? static_cast<float>(x[i] / (1.0 - key.rate)) : 0;
  }
}

void ReferencePointwise::Add(ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("y", y.size(), std::ssize(x));
  for (size_t i = 0; i < x.size(); ++i) y[i] += x[i];
}

void ReferenceMemory::Transpose(int64_t batch, int64_t positions, int64_t channels,
                                ConstValues x_values, Values y_values) {
  const auto x = x_values.floats();
  const auto y = y_values.floats();
  CheckSize("x", x.size(), batch * positions * channels);
  CheckSize("y", y.size(), batch * positions * channels);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t c = 0; c < channels; ++c) {
        y[(n * channels + c) * positions + p] = x[(n * positions + p) * channels + c];
      }
    }
  }
}

}  // namespace cadre
