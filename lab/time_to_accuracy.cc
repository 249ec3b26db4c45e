#include "lab/time_to_accuracy.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/text_message.h"
#include "plan/cost/group_hybrid.h"

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxTableBytes = 16 << 20;

std::vector<Problem> FindTableProblems(const v1::EpochsTable& table) {
  std::vector<Problem> problems;
  const float target = table.target_accuracy();
  if (!(target >= 0 && target <= 1)) {
    problems.push_back({"target_accuracy", absl::StrCat("is ", target, "; it lies in [0, 1]")});
  }
  if (table.batch_per_worker() == 0) problems.push_back({"batch_per_worker", "is missing"});
  for (int i = 0; i < table.entry_size(); ++i) {
    const v1::EpochsEntry& entry = table.entry(i);
    const std::string field = absl::StrCat("entry[", i, "]");
    if (entry.workers() == 0) problems.push_back({field + ".workers", "is missing"});
    if (!(entry.epochs() > 0) || !std::isfinite(entry.epochs())) {
      problems.push_back(
          {field + ".epochs", absl::StrCat("is ", entry.epochs(), "; it must be above 0")});
    }
  }
  return problems;
}

}  // namespace

absl::StatusOr<v1::EpochsTable> ReadEpochsTable(const std::string& path) {
  return ReadValidMessage(path, kMaxTableBytes, "a table of epochs in text format",
                          FindTableProblems);
}

std::string PrintEpochsTable(const v1::EpochsTable& table, absl::string_view name) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(table, &text);
  return absl::StrCat(
      "# proto-file: proto/cadre/v1/profile.proto\n"
      "# proto-message: cadre.v1.EpochsTable\n"
      "#\n"
      "# Epochs until a model is good enough, by the number of workers that train it, each on\n"
      "# batch_per_worker samples a step. Measured by 'cadre measure-epochs', read by\n"
      "# 'cadre plan --epochs'.",
      name.empty() ? "" : absl::StrCat(" The run spec was \"", name, "\"."), "\n\n", text);
}

absl::StatusOr<EpochsCurve> EpochsCurve::FromTable(const v1::EpochsTable& table) {
  if (table.entry().empty()) {
    return absl::InvalidArgumentError("the table of epochs has no entry");
  }
  CADRE_RETURN_IF_ERROR(StatusOf(FindTableProblems(table)));
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

std::vector<DevicePlan> DevicePlansFor(int64_t devices, const TrainingTimes& times) {
  std::vector<DevicePlan> plans;
  for (const int64_t workers : DivisorsOf(devices)) {
    const absl::StatusOr<double> epochs = times.epochs->At(workers);
    const double steps = StepsPerEpoch(times.samples, (workers * times.batch_per_worker));
    if (!epochs.ok() || !std::isfinite(*epochs) || steps < 1) continue;
    const std::optional<HybridStep> step = times.step(workers, devices / workers);
    if (!step) continue;
    plans.push_back({.workers = workers,
                     .model_devices = devices / workers,
                     .epochs = *epochs,
                     .step_seconds = step->seconds,
                     .seconds = TimeToAccuracy(step->seconds, steps, *epochs),
                     .splits_model = step->splits_model});
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
    const bool split = plans[FastestPlan(plans)].splits_model;
    if (!split) crossover.reset();
    if (split && !crossover) crossover = devices;
  }
  return crossover;
}

}  // namespace cadre
