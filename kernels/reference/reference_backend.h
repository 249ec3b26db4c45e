// The oracle: each operation as its definition, summed in double, in one thread, as simply as
// possible. Each family is a class in a file of its own. Owns nothing. Thread-compatible.
#pragma once

#include <memory>

#include "kernels/host_backend.h"

namespace cadre {

std::unique_ptr<DenseKernels> MakeReferenceDense();
std::unique_ptr<WindowKernels> MakeReferenceWindow();
std::unique_ptr<NormKernels> MakeReferenceNorm();
std::unique_ptr<PointwiseKernels> MakeReferencePointwise();

}  // namespace cadre
