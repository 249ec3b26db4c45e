// Ranks on emulated devices, whose data travels over a fake NCCL: what a group on GPUs does, but
// for the cards.
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
