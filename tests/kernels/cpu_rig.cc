// A rig with the CPU back end on a processor that has bf16 products.
#include "tests/kernels/rig.h"

namespace cadre {

std::string RigName() { return "Cpu"; }

std::string MissingRig() {
  return std::string(MakeCpuBackend(1)->SetPrecision(Precision::kBf16).message());
}

Rig MakeRig() { return {nullptr, MakeCpuBackend(2)}; }

}  // namespace cadre
