// Decides whether to split the model instead of adding data parallel workers, by the time to a
// target accuracy: C = T S E, seconds per step times steps per epoch times epochs.
//
// Source: Pal, Ebrahimi, Zulfiqar, Fu, Zhang, Migacz, Nellans, Gupta, "Optimizing multi-GPU
// parallelization strategies for deep learning training", IEEE Micro 2019. With a scaling
// efficiency SE_N = T_1 / T_N at a constant batch per worker, E_N epochs for N workers (whose batch
// grows with N), and SU^M, the speed-up of a step with the model split over M devices:
//
//   SU_N   = SE_N N E_1 / E_N                                    N workers
//   SU^M_N = SU^M SE_N N E_1 / E_N                               N workers of M devices each
//   RHS    = M (SE_MN / SE_N) (E_N / E_MN)                       split when SU^M > RHS
//   gain   = SU^M / RHS                                          by splitting, on M N devices
//
// E is a table: protobuf text that `cadre measure-epochs` writes, `cadre plan --epochs` reads and
// users may edit.
//
// Values, and functions that are pure except for files; thread-safe.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// C. Requires: all >= 0.
inline double TimeToAccuracy(double step_seconds, double steps_per_epoch, double epochs) {
  return step_seconds * steps_per_epoch * epochs;
}

// S: whole steps; the remainder of an epoch is dropped. Requires: batch > 0.
inline double StepsPerEpoch(double samples, double batch) { return std::floor(samples / batch); }

// --- Epochs by number of workers ---

// Errors: NotFound if there is no such file; InvalidArgument, naming file, line and field, for
// malformed text, no batch_per_worker, a target that is not in [0, 1], and entries without workers
// or with epochs that are not positive or not finite.
absl::StatusOr<v1::EpochsTable> ReadEpochsTable(const std::string& path);

// The text that ReadEpochsTable reads, with an explanatory comment; `name` is the run spec's name.
std::string PrintEpochsTable(const v1::EpochsTable& table, absl::string_view name);

class EpochsCurve {
 public:
  // Averages several entries for the same number of workers; the mean is infinite if one of them
  // did not reach the target. Errors: InvalidArgument for the same faults as ReadEpochsTable, no
  // entry, and no entry that reached the target.
  static absl::StatusOr<EpochsCurve> FromTable(const v1::EpochsTable& table);

  // Interpolates linearly in log2 of the workers between two measured numbers; infinite if one of
  // these two did not reach the target. Errors: OutOfRange for fewer or more workers than were
  // measured.
  absl::StatusOr<double> At(double workers) const;

 private:
  explicit EpochsCurve(std::map<uint32_t, double> epochs) : epochs_(std::move(epochs)) {}

  // By number of workers; infinite if the target was not reached.
  std::map<uint32_t, double> epochs_;
};

// --- The rule ---

// SU_N. Requires: epochs > 0.
inline double DataParallelSpeedup(double efficiency, double workers, double epochs_of_one,
                                  double epochs) {
  return efficiency * workers * epochs_of_one / epochs;
}
// SU^M_N.
inline double HybridSpeedup(double model_speedup, double efficiency, double workers,
                            double epochs_of_one, double epochs) {
  return model_speedup * DataParallelSpeedup(efficiency, workers, epochs_of_one, epochs);
}
// RHS: the speed-up above which splitting over `devices` reduces the time. Efficiencies and epochs
// are those of N workers and of M N workers.
inline double HybridThreshold(double devices, double efficiency, double more_efficiency,
                              double epochs, double more_epochs) {
  return devices * (more_efficiency / efficiency) * (epochs / more_epochs);
}

// --- A number of devices ---

// D devices as N data parallel workers of M devices each, which split the model.
struct DevicePlan {
  int64_t workers = 1;
  int64_t model_devices = 1;
  // E, T, and C.
  double epochs = 0;
  double step_seconds = 0;
  double seconds = 0;
  bool splits_model = false;
};

// A step of N workers of M devices each.
struct HybridStep {
  double seconds = 0;
  // False if the devices of a worker divide its samples alone.
  bool splits_model = false;
};

// The inputs of the rule.
struct TrainingTimes {
  const EpochsCurve* epochs = nullptr;
  // Samples per epoch, and per step of a worker.
  double samples = 0;
  int64_t batch_per_worker = 1;
  // T for so many workers of so many devices, T_1 / (SU^M SE_N) in the rule above; nullopt: the
  // step cannot be executed that way.
  std::function<std::optional<HybridStep>(int64_t workers, int64_t model_devices)> step;
};

// All ways to divide the devices among N workers, smallest N first, for which the table says that N
// workers reach the target, an epoch has at least one step, and the step can be executed. The rule
// chooses the one with the minimum C. Requires: devices >= 1.
std::vector<DevicePlan> DevicePlansFor(int64_t devices, const TrainingTimes& times);
// The position of the plan with the minimum C. Requires: not empty.
size_t FastestPlan(const std::vector<DevicePlan>& plans);

// The smallest power of two from which on the fastest plan for so many devices splits the model;
// nullopt: there is none up to max_devices, or within the table.
std::optional<int64_t> CrossoverDevices(int64_t max_devices, const TrainingTimes& times);

}  // namespace cadre
