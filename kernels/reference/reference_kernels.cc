#include "kernels/reference/reference_kernels.h"

namespace cadre {

std::unique_ptr<Kernels> MakeReferenceKernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace cadre
