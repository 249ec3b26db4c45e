// The strategies of two papers (group hybrid: Joo, Youn 2021; the others: Gholami et al. 2018),
// to which a search can be restricted.
//
// Thread-safe (values and pure functions).
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

enum class Strategy {
  kBatch,             // every layer by samples
  kModel,             // every layer with weights by outputs
  kUniformGrid,       // every layer with weights by samples and outputs
  kConvBatchFcGrid,   // convolutions by samples; fully connected layers by samples and outputs
  kConvDomainFcGrid,  // convolutions by samples and rows; fully connected as above
  kGroupHybrid,       // as kConvBatchFcGrid, with the grid from the closed form of its paper
  kAuto,              // every layer in its best way: the search over all plans
};
// "batch", "conv-batch-fc-grid", ..., "auto".
absl::string_view StrategyName(Strategy strategy);
std::optional<Strategy> StrategyFromName(absl::string_view name);
const std::vector<Strategy>& AllStrategies();

}  // namespace cadre
