#include "coordinator/cost/time_to_accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/cost/group_hybrid.h"
#include "spec/epochs_table.h"

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

double TimeToAccuracy(double step_seconds, double steps_per_epoch, double epochs) {
  return step_seconds * steps_per_epoch * epochs;
}

double StepsOfPass(double samples, double batch) { return std::floor(samples / batch); }

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
  const double least = epochs_.begin()->first;
  const double most = epochs_.rbegin()->first;
  if (!(workers >= least && workers <= most)) {
    return absl::OutOfRangeError(absl::StrCat("epochs were measured for ", least, " to ", most,
                                              " workers, not for ", workers));
  }
  auto above = epochs_.begin();
  while (above->first < workers) ++above;
  if (above->first == workers) return above->second;
  const auto below = std::prev(above);
  if (!std::isfinite(below->second) || !std::isfinite(above->second)) return kInfinite;
  const double part = std::log2(workers / below->first) /
                      std::log2(static_cast<double>(above->first) / below->first);
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

std::vector<DevicePlan> WaysToTrain(int64_t devices, const TrainingTimes& times) {
  std::vector<DevicePlan> ways;
  for (const int64_t workers : DivisorsOf(devices)) {
    const absl::StatusOr<double> epochs = times.epochs->At(static_cast<double>(workers));
    const double steps =
        StepsOfPass(times.samples, static_cast<double>(workers * times.batch_per_worker));
    if (!epochs.ok() || !std::isfinite(*epochs) || steps < 1) continue;
    const std::optional<double> step = times.step_seconds(workers, devices / workers);
    if (!step) continue;
    ways.push_back({.workers = workers,
                    .model_devices = devices / workers,
                    .epochs = *epochs,
                    .step_seconds = *step,
                    .seconds = TimeToAccuracy(*step, steps, *epochs)});
  }
  return ways;
}

size_t SoonestOf(const std::vector<DevicePlan>& ways) {
  const auto soonest = std::min_element(
      ways.begin(), ways.end(),
      [](const DevicePlan& a, const DevicePlan& b) { return a.seconds < b.seconds; });
  return static_cast<size_t>(soonest - ways.begin());
}

std::optional<int64_t> CrossoverDevices(int64_t most, const TrainingTimes& times) {
  std::optional<int64_t> crossover;
  for (int64_t devices = 2; devices <= most; devices *= 2) {
    // Beyond the table nothing is said; workers that it knows not to get there are beaten.
    if (!times.epochs->At(static_cast<double>(devices)).ok()) break;
    const std::vector<DevicePlan> ways = WaysToTrain(devices, times);
    if (ways.empty()) break;
    const bool split = ways[SoonestOf(ways)].model_devices > 1;
    if (!split) crossover.reset();
    if (split && !crossover) crossover = devices;
  }
  return crossover;
}

}  // namespace cadre
