// Links the tests of devices with this machine's GPU.
#include "absl/strings/str_cat.h"
#include "tests/device/test_machine.h"

namespace cadre {
namespace {

class ThisMachine final : public TestMachine {
 public:
  const CudaApi& api() const override { return RealCudaApi(); }
};

}  // namespace

std::vector<TestMachineKind> TestMachines() {
  const auto described = DescribeCuda(RealCudaApi());
  const std::string missing =
      described.ok() ? "" : absl::StrCat("needs a GPU: ", described.status().message());
  return {
      {.name = "Real", .missing = missing, .make = [] { return std::make_unique<ThisMachine>(); }}};
}

}  // namespace cadre
