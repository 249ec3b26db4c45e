// Links the tests of devices with this machine's GPU.
#include "absl/strings/str_cat.h"
#include "device/cuda/cuda_machine.h"
#include "tests/device/test_machine.h"

namespace cadre {

std::vector<TestMachineKind> TestMachines() {
  const auto described = DescribeCuda(RealCudaApi());
  const std::string missing =
      described.ok() ? "" : absl::StrCat("needs a GPU: ", described.status().message());
  const auto make = [] {
    return std::shared_ptr<const CudaApi>(std::shared_ptr<void>(), &RealCudaApi());
  };
  return {{.name = "Real", .missing = missing, .make = make}};
}

}  // namespace cadre
