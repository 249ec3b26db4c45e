// The back ends of the programs that test a CUDA device or an emulated one.
#include "absl/strings/str_cat.h"
#include "tests/kernels/rig.h"

namespace cadre {

std::vector<BackEnd> BackEnds() {
  const std::string missing = MissingRig();
  // Data at addresses that allow 16-byte accesses, and at addresses that do not.
  return {{RigName(), [] { return MakeStagedBackend(MakeRig(), 0); }, missing},
          {absl::StrCat(RigName(), "Misaligned"), [] { return MakeStagedBackend(MakeRig(), 1); },
           missing}};
}

std::vector<BackEnd> BackEndsOfEverySize() {
  std::vector<BackEnd> back_ends = BackEnds();
  if (MissingRig().empty() && MakeLargeRig().has_value()) {
    back_ends.push_back({absl::StrCat(RigName(), "Large"),
                         [] { return MakeStagedBackend(*MakeLargeRig(), 0); },
                         {}});
  }
  return back_ends;
}

}  // namespace cadre
