#include "plan/search/strategy.h"

#include <utility>

namespace cadre {
namespace {

constexpr std::pair<Strategy, absl::string_view> kNames[] = {
    {Strategy::kBatch, "batch"},
    {Strategy::kModel, "model"},
    {Strategy::kUniformGrid, "uniform-grid"},
    {Strategy::kConvBatchFcGrid, "conv-batch-fc-grid"},
    {Strategy::kConvDomainFcGrid, "conv-domain-fc-grid"},
    {Strategy::kGroupHybrid, "group-hybrid"},
    {Strategy::kAuto, "auto"},
};

}  // namespace

absl::string_view StrategyName(Strategy strategy) {
  for (const auto& [each, name] : kNames) {
    if (each == strategy) return name;
  }
  return "";
}

std::optional<Strategy> StrategyFromName(absl::string_view name) {
  for (const auto& [strategy, each] : kNames) {
    if (each == name) return strategy;
  }
  return std::nullopt;
}

const std::vector<Strategy>& AllStrategies() {
  // Never destroyed, so that it can be read during the destruction of static objects.
  static const auto& all = *[] {
    auto* strategies = new std::vector<Strategy>();
    for (const auto& [strategy, name] : kNames) strategies->push_back(strategy);
    return strategies;
  }();
  return all;
}

}  // namespace cadre
