#include "tests/kernels/testing.h"

namespace cadre {

std::vector<BackEnd> BackEnds() {
  return {{"Reference", [] { return MakeReferenceKernels(); }, {}},
          {"Cpu", [] { return MakeCpuKernels(1); }, {}},
          {"CpuThreeThreads", [] { return MakeCpuKernels(3); }, {}}};
}

}  // namespace cadre
