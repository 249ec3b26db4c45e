// Ranks on emulated devices with a fake NCCL: a group on GPUs without the hardware.
//
// Not thread-safe.
#pragma once

#include <memory>

#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/equivalence/ranks.h"

namespace cadre {

class EmulatedGroup {
 public:
  explicit EmulatedGroup(EmulatedCuda::Mode mode);

  // Borrows the object.
  GroupTrainer trainer();

 private:
  FakeNccl nccl_;
  Ranks ranks_;
};

}  // namespace cadre
