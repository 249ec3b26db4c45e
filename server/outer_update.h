// The update of an outer optimizer (run.proto, OuterOptimizer) for one round, block by block.
//
// Equal inputs give equal bits on every machine. With Nesterov's momentum these are the bits of
// torch.optim.SGD(nesterov=True) on a CPU: the products with `momentum` and `learning_rate` are
// fused with the sums that follow them, all other operations are rounded separately.
//
// Immutable and thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class OuterUpdate {
 public:
  // For the update that makes version `round`. Requires: all fields of `step` are set.
  OuterUpdate(const v1::OuterStep& step, uint32_t round);

  // Number of state values for each value.
  int states() const { return states_; }

  // Replaces the means of values by their next version. `before`: their previous version.
  // `states[i]`: state i, all zeros before the first round. Requires: equal sizes. Returns the
  // sums over these values.
  v1::OuterSums Update(std::span<const float> before, std::span<float> values,
                       std::array<std::span<float>, 2> states) const;

 private:
  int states_;
  bool slowmo_;
  float learning_rate_;
  float momentum_;
  // SlowMo: the learning rate of the groups.
  float rate_;
  // Delayed Nesterov: the number of rounds between updates of the momentum, and whether this round
  // updates it.
  float every_rounds_;
  bool updates_momentum_;
};

// Adds `more` to `sums`.
void AddSums(const v1::OuterSums& more, v1::OuterSums& sums);

}  // namespace cadre
