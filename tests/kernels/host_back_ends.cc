#include "tests/kernels/testing.h"

namespace cadre {

std::vector<BackEnd> BackEnds() {
  return {{"Reference", [] { return MakeReferenceBackend(); }, {}},
          {"Cpu", [] { return MakeCpuBackend(1); }, {}},
          {"CpuThreeThreads", [] { return MakeCpuBackend(3); }, {}}};
}

}  // namespace cadre
