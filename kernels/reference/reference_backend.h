// The back end that tests compare the others with (the oracle): each operation by its definition,
// as simply as possible, in one thread, with sums in double. Each family is a class in a separate
// file. Thread-compatible.
#pragma once

#include <memory>

#include "kernels/host_backend.h"

namespace cadre {

std::unique_ptr<DenseKernels> MakeReferenceDense();
std::unique_ptr<WindowKernels> MakeReferenceWindow();
std::unique_ptr<NormKernels> MakeReferenceNorm();
std::unique_ptr<PointwiseKernels> MakeReferencePointwise();

}  // namespace cadre
