// The strategies of two papers (all but the last: Gholami et al. 2018; the last: Joo, Youn 2021),
// to which a search can be restricted. A strategy splits
//
//   batch               all layers by samples
//   model               all layers by outputs
//   uniform-grid        all layers on one grid P_r x P_c by outputs and samples
//   conv-batch-fc-grid  convolutions by samples over all ranks, fully connected layers on a grid
//   conv-domain-fc-grid convolutions by rows and samples, and fully connected layers, on one grid
//   group-hybrid        convolutions by samples, fully connected layers inside groups
//
// Thread-safe (values and pure functions).
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The strategies of the table above, and `auto`: the planner's own search over all plans.
enum class Strategy {
  kBatch,             // every layer by samples
  kModel,             // every layer with weights by outputs
  kUniformGrid,       // every layer with weights by samples and outputs
  kConvBatchFcGrid,   // convolutions by samples; fully connected layers by samples and outputs
  kConvDomainFcGrid,  // convolutions by samples and rows; fully connected as above
  kGroupHybrid,       // as kConvBatchFcGrid, with the grid from the closed form of its paper
  kAuto,              // every layer in its best way; not a strategy of a paper
};
// The names of the table above, and "auto".
absl::string_view StrategyName(Strategy strategy);
std::optional<Strategy> StrategyFromName(absl::string_view name);
const std::vector<Strategy>& AllStrategies();

}  // namespace cadre
