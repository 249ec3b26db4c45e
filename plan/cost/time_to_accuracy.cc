#include "plan/cost/time_to_accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plan/cost/epochs_table.h"
#include "plan/cost/group_hybrid.h"

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

double TimeToAccuracy(double step_seconds, double steps_per_epoch, double epochs) {
  return step_seconds * steps_per_epoch * epochs;
}

double StepsPerEpoch(double samples, double batch) { return std::floor(samples / batch); }

absl::StatusOr<EpochsCurve> EpochsCurve::FromTable(const v1::EpochsTable& table) {
  if (table.entry().empty()) {
    return absl::InvalidArgumentError("the table of epochs has no entry");
  }
  CADRE_RETURN_IF_ERROR(CheckEpochsTable(table));
  std::map<uint32_t, std::pair<double, int>> sums;
  for (const v1::EpochsEntry& entry : table.entry()) {
    auto& [sum, count] = sums[entry.workers()];
    sum += entry.reached() ? entry.epochs() : kInfinite;
    ++count;
  }
  std::map<uint32_t, double> epochs;
  bool any = false;
  for (const auto& [workers, sum] : sums) {
    epochs[workers] = sum.first / sum.second;
    any = any || std::isfinite(epochs[workers]);
  }
  if (!any) {
    return absl::InvalidArgumentError(
        "no entry of the table of epochs reached its target (reached: true)");
  }
  return EpochsCurve(std::move(epochs));
}

absl::StatusOr<double> EpochsCurve::At(double workers) const {
  const double min_workers = epochs_.begin()->first;
  const double max_workers = epochs_.rbegin()->first;
  if (!(workers >= min_workers && workers <= max_workers)) {
    return absl::OutOfRangeError(absl::StrCat("epochs were measured for ", min_workers, " to ",
                                              max_workers, " workers, not for ", workers));
  }
  auto above = epochs_.begin();
  while (above->first < workers) ++above;
  if (above->first == workers) return above->second;
  const auto below = std::prev(above);
  if (!std::isfinite(below->second) || !std::isfinite(above->second)) return kInfinite;
  const double part =
      std::log2(workers / below->first) / std::log2(1.0 * above->first / below->first);
  return below->second + part * (above->second - below->second);
}

double DataParallelSpeedup(double efficiency, double workers, double epochs_of_one, double epochs) {
  return efficiency * workers * epochs_of_one / epochs;
}

double HybridSpeedup(double model_speedup, double efficiency, double workers, double epochs_of_one,
                     double epochs) {
  return model_speedup * DataParallelSpeedup(efficiency, workers, epochs_of_one, epochs);
}

double HybridThreshold(double devices, double efficiency, double more_efficiency, double epochs,
                       double more_epochs) {
  return devices * (more_efficiency / efficiency) * (epochs / more_epochs);
}

std::vector<DevicePlan> DevicePlansFor(int64_t devices, const TrainingTimes& times) {
  std::vector<DevicePlan> plans;
  for (const int64_t workers : DivisorsOf(devices)) {
    const absl::StatusOr<double> epochs = times.epochs->At(workers);
    const double steps = StepsPerEpoch(times.samples, (workers * times.batch_per_worker));
    if (!epochs.ok() || !std::isfinite(*epochs) || steps < 1) continue;
    const std::optional<double> step = times.step_seconds(workers, devices / workers);
    if (!step) continue;
    plans.push_back({.workers = workers,
                     .model_devices = devices / workers,
                     .epochs = *epochs,
                     .step_seconds = *step,
                     .seconds = TimeToAccuracy(*step, steps, *epochs)});
  }
  return plans;
}

size_t FastestPlan(const std::vector<DevicePlan>& plans) {
  const auto fastest = std::min_element(
      plans.begin(), plans.end(),
      [](const DevicePlan& a, const DevicePlan& b) { return a.seconds < b.seconds; });
  return fastest - plans.begin();
}

std::optional<int64_t> CrossoverDevices(int64_t max_devices, const TrainingTimes& times) {
  std::optional<int64_t> crossover;
  for (int64_t devices = 2; devices <= max_devices; devices *= 2) {
    // The search ends at a number that the table does not cover. A number that does not reach the
    // target by the table is never the fastest.
    if (!times.epochs->At(devices).ok()) break;
    const std::vector<DevicePlan> plans = DevicePlansFor(devices, times);
    if (plans.empty()) break;
    const bool split = plans[FastestPlan(plans)].model_devices > 1;
    if (!split) crossover.reset();
    if (split && !crossover) crossover = devices;
  }
  return crossover;
}

}  // namespace cadre
