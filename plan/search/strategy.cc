#include "plan/search/strategy.h"

namespace cadre {
namespace {

constexpr absl::string_view kNames[] = {
    "batch",        "model", "uniform-grid", "conv-batch-fc-grid", "conv-domain-fc-grid",
    "group-hybrid", "auto"};

}  // namespace

absl::string_view StrategyName(Strategy strategy) { return kNames[static_cast<int>(strategy)]; }

std::optional<Strategy> StrategyFromName(absl::string_view name) {
  for (const Strategy strategy : AllStrategies()) {
    if (StrategyName(strategy) == name) return strategy;
  }
  return std::nullopt;
}

const std::vector<Strategy>& AllStrategies() {
  // Never destroyed, so that it can be read during the destruction of static objects.
  static const auto& all = *new std::vector<Strategy>{Strategy::kBatch,
                                                      Strategy::kModel,
                                                      Strategy::kUniformGrid,
                                                      Strategy::kConvBatchFcGrid,
                                                      Strategy::kConvDomainFcGrid,
                                                      Strategy::kGroupHybrid,
                                                      Strategy::kAuto};
  return all;
}

}  // namespace cadre
