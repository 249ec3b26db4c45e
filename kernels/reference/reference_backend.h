// The back end that tests compare the others with (the oracle): each operation by its definition,
// as simply as possible, in one thread, with sums in double. Each family is a class in a separate
// file. Thread-compatible.
#pragma once

#include <glog/logging.h>

#include <algorithm>
#include <memory>
#include <span>

#include "kernels/host_backend.h"

namespace cadre {

std::unique_ptr<DenseKernels> MakeReferenceDense();
std::unique_ptr<WindowKernels> MakeReferenceWindow();
std::unique_ptr<NormKernels> MakeReferenceNorm();
std::unique_ptr<PointwiseKernels> MakeReferencePointwise();

// The exact product of two floats.
inline double Product(double a, float b) { return a * b; }

// out = sums, rounded. Requires: equal sizes.
inline void Store(std::span<const double> sums, std::span<float> out) {
  CHECK_EQ(sums.size(), out.size());
  std::transform(sums.begin(), sums.end(), out.begin(), [](double sum) -> float { return sum; });
}

}  // namespace cadre
