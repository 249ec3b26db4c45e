// The names here are part of the checkpoint format ("conv1/weight@nesterov_momentum") and must not
// change. The momentum of each outer optimizer has a name of its own, because their scales differ.
//
// The sum of delayed Nesterov is not in checkpoints. It is zero after each update of the momentum,
// and a new run counts its rounds from 1, so it could not continue a period that has begun.
#include "model/averaging_state.h"

#include "model/coding.h"
#include "model/outer_optimizer.h"

namespace cadre {

std::vector<std::string> ShardStateNames(const v1::Averaging& averaging) {
  std::vector<std::string> names;
  if (const auto outer = OuterOptimizerOf(averaging)) {
    names.emplace_back(outer->has_slowmo() ? "slowmo_momentum" : "nesterov_momentum");
    // The sum of delayed Nesterov.
    for (int state = 1; state < OuterStates(*outer); ++state) names.emplace_back("");
  }
  if (CodingOf(averaging.down())) names.emplace_back("version_residual");
  return names;
}

}  // namespace cadre
