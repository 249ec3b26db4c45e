#include "coordinator/replan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/prediction_blame.h"

namespace cadre {
namespace {

// Plans that a slot has tried; a group tries a handful.
constexpr size_t kMostPlans = 64;
// A prediction that is further off than this says nothing of other plans.
constexpr double kMostBias = 4;

}  // namespace

// Axes of one rank split nothing, and indices are split in any order.
std::string SignatureOf(const v1::Plan& plan) {
  std::string signature;
  std::set<std::string> axes;
  for (const v1::MeshAxis& axis : plan.mesh()) {
    if (axis.size() <= 1) continue;
    axes.insert(axis.name());
    absl::StrAppend(&signature, axis.name(), "=", axis.size(), " ");
  }
  for (const v1::LayerPlan& layer : plan.layers()) {
    std::map<std::string, std::string> splits;
    for (const v1::IndexSplit& split : layer.split()) {
      for (const std::string& axis : split.axes()) {
        if (axes.count(axis) != 0) absl::StrAppend(&splits[split.index()], ",", axis);
      }
    }
    absl::StrAppend(&signature, "\n", layer.layer());
    for (const auto& [index, over] : splits) absl::StrAppend(&signature, " ", index, over);
  }
  return signature;
}

void PlanMemory::Learn(const v1::Plan& plan, double step_seconds, std::optional<double> predicted) {
  const uint64_t signature = TextDigest(SignatureOf(plan));
  if (measured.size() >= kMostPlans && measured.count(signature) == 0) measured.clear();
  measured[signature] = step_seconds;
  if (predicted.has_value() && *predicted > 0) {
    bias = std::clamp(step_seconds / *predicted, 1 / kMostBias, kMostBias);
  }
}

void PlanMemory::Load(const v1::GroupRecord& record) {
  measured.clear();
  for (const v1::MeasuredPlan& plan : record.measured_plan()) {
    measured[plan.plan()] = plan.step_seconds();
  }
  bias = record.plan_bias() > 0 ? record.plan_bias() : 1;
}

void PlanMemory::Store(v1::GroupRecord& record) const {
  record.clear_measured_plan();
  for (const auto& [plan, seconds] : measured) {
    v1::MeasuredPlan& kept = *record.add_measured_plan();
    kept.set_plan(plan);
    kept.set_step_seconds(seconds);
  }
  record.set_plan_bias(bias);
}

std::optional<double> PlanMemory::Expected(const GroupPlan& plan) const {
  const auto known = measured.find(TextDigest(SignatureOf(plan.plan)));
  if (known != measured.end()) return known->second;
  if (!plan.predicted.has_value()) return std::nullopt;
  return bias * plan.predicted->step();
}

const GroupPlan& FastestOf(const std::vector<GroupPlan>& plans, const PlanMemory& memory) {
  const GroupPlan* fastest = &plans.front();
  std::optional<double> least = memory.Expected(*fastest);
  for (const GroupPlan& plan : plans) {
    const std::optional<double> expected = memory.Expected(plan);
    if (!expected.has_value() || !least.has_value() || *expected >= *least) continue;
    fastest = &plan;
    least = expected;
  }
  return *fastest;
}

std::optional<PlanChange> BetterThan(const v1::Plan& present, double step_seconds,
                                     const std::vector<GroupPlan>& plans,
                                     const PlanMemory& memory) {
  const GroupPlan& fastest = FastestOf(plans, memory);
  if (SignatureOf(fastest.plan) == SignatureOf(present)) return std::nullopt;
  const std::optional<double> expected = memory.Expected(fastest);
  if (!expected.has_value() || *expected > (1 - kLeastGain) * step_seconds) return std::nullopt;
  return PlanChange{.now_seconds = step_seconds, .then_seconds = *expected};
}

bool Pays(const PlanChange& move, uint64_t steps_left, absl::Duration formation) {
  const double cost = absl::ToDoubleSeconds(std::max(formation, kLeastMoveCost));
  return (move.now_seconds - move.then_seconds) * static_cast<double>(steps_left) >
         kGainOverCost * cost;
}

std::string InWords(const PlanChange& move) {
  return absl::StrCat("planned anew: ", InMilliseconds(move.then_seconds), " a step instead of ",
                      InMilliseconds(move.now_seconds));
}

}  // namespace cadre
