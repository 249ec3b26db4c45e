// A group measures the time of its steps, so the planner's error for the plan in use is known. The
// planner's errors are mostly common to all plans of one group (a busy host, a link slower than its
// probe), so the expected time of another plan is its prediction times bias, the ratio measured /
// predicted of the plan measured last. A plan that was run before is expected to take its measured
// time, regardless of its prediction. Therefore a group that changes to a plan that is slower than
// predicted returns at most once and never oscillates. The history is part of the group's durable
// record, so this also holds across restarts of the coordinator.
//
// A change costs one formation of the group: all ranks drain, reconnect, allocate and pull the
// model. It is made only if
//
//   then <= (1 - kMinGain) * now    and    (now - then) * steps_left > kGainOverCost * cost
//
// The first condition keeps noise of the measurement from causing changes; the second is the usual
// amortisation rule with a safety factor. The bias is clamped to [1/4, 4]: a larger ratio means
// that the measurement does not apply to other plans.
//
// Groups with similar measurements share a search (plan_searches.h), whose predictions are
// therefore those for somewhat other layer times. If the search has predicted the present plan,
// too, the bias is taken from that prediction, so the difference cancels out.
//
// Limitation: there is one bias per slot. If the planner is wrong about one kind of layout only,
// this shows only when that layout is tried, at the cost of one change and one return.
#include "coordinator/run/replan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "coordinator/run/prediction_error_cause.h"

namespace cadre {
namespace {

// Maximum number of plans of one slot; groups try only a few.
constexpr size_t kMaxPlans = 64;
// Larger ratios are not applied to other plans.
constexpr double kMaxBias = 4;

}  // namespace

// Ignores axes of one rank, which split and place nothing, and the order of the splits.
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
    for (const v1::AxisCoordinate& at : layer.at()) {
      if (axes.count(at.axis()) != 0) absl::StrAppend(&signature, " @", at.axis(), at.coordinate());
    }
  }
  for (const v1::RecomputedBlock& block : plan.recomputed()) {
    absl::StrAppend(&signature, "\n+ ", block.first(), "\n- ", block.last());
  }
  return signature;
}

void PlanHistory::Record(const v1::Plan& plan, double step_seconds,
                         std::optional<double> predicted) {
  const uint64_t signature = TextDigest(SignatureOf(plan));
  if (measured.size() >= kMaxPlans && measured.count(signature) == 0) measured.clear();
  measured[signature] = step_seconds;
  if (predicted.has_value() && *predicted > 0) {
    bias = std::clamp(step_seconds / *predicted, 1 / kMaxBias, kMaxBias);
  }
}

void PlanHistory::Load(const v1::GroupRecord& record) {
  measured.clear();
  for (const v1::MeasuredPlan& plan : record.measured_plan()) {
    measured[plan.plan()] = plan.step_seconds();
  }
  bias = record.plan_bias() > 0 ? record.plan_bias() : 1;
}

void PlanHistory::Store(v1::GroupRecord& record) const {
  record.clear_measured_plan();
  for (const auto& [plan, seconds] : measured) {
    v1::MeasuredPlan& stored = *record.add_measured_plan();
    stored.set_plan(plan);
    stored.set_step_seconds(seconds);
  }
  record.set_plan_bias(bias);
}

std::optional<double> PlanHistory::Expected(const GroupPlan& plan) const {
  const auto known = measured.find(TextDigest(SignatureOf(plan.plan)));
  if (known != measured.end()) return known->second;
  if (!plan.predicted.has_value()) return std::nullopt;
  return bias * plan.predicted->step();
}

const GroupPlan& FastestOf(const std::vector<GroupPlan>& plans, const PlanHistory& history) {
  const GroupPlan* fastest = &plans.front();
  std::optional<double> shortest = history.Expected(*fastest);
  if (!shortest.has_value()) return *fastest;
  for (const GroupPlan& plan : plans) {
    const std::optional<double> expected = history.Expected(plan);
    if (!expected.has_value() || *expected >= *shortest) continue;
    fastest = &plan;
    shortest = expected;
  }
  return *fastest;
}

std::optional<PlanChange> FindBetterPlan(const v1::Plan& present, double step_seconds,
                                         const std::vector<GroupPlan>& plans,
                                         const PlanHistory& history) {
  const std::string signature = SignatureOf(present);
  PlanHistory known = history;
  std::optional<double> predicted;
  for (const GroupPlan& plan : plans) {
    if (plan.predicted.has_value() && SignatureOf(plan.plan) == signature) {
      predicted = plan.predicted.value().step();
      known.Record(present, step_seconds, predicted);
    }
  }
  const GroupPlan& fastest = FastestOf(plans, known);
  if (SignatureOf(fastest.plan) == signature) return std::nullopt;
  const std::optional<double> expected = known.Expected(fastest);
  if (!expected.has_value() || *expected > (1 - kMinGain) * step_seconds) return std::nullopt;
  return PlanChange{
      .now_seconds = step_seconds, .then_seconds = *expected, .predicted_now = predicted};
}

bool IsWorthwhile(const PlanChange& change, uint64_t steps_left, absl::Duration formation) {
  const double cost = absl::ToDoubleSeconds(std::max(formation, kMinChangeCost));
  return (change.now_seconds - change.then_seconds) * static_cast<double>(steps_left) >
         kGainOverCost * cost;
}

std::string ToText(const PlanChange& change) {
  return absl::StrCat("replanned: ", MillisecondsToText(change.then_seconds),
                      " per step instead of ", MillisecondsToText(change.now_seconds));
}

}  // namespace cadre
