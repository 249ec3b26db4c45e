// When to stop adding data parallel workers and split the model instead: time to a target is
// C = T S E, seconds of a step times steps of an epoch times epochs.
//
// Source: Pal, Ebrahimi, Zulfiqar, Fu, Zhang, Migacz, Nellans, Gupta, "Optimizing multi-GPU
// parallelization strategies for deep learning training", IEEE Micro 2019. With a scaling
// efficiency SE_N = T_1 / T_N at a constant batch per worker, E_N epochs for N workers (whose batch
// grows with N), and SU^M, how many times faster a step is with the model split over M devices:
//
//   SU_N   = SE_N N E_1 / E_N                                    N workers
//   SU^M_N = SU^M SE_N N E_1 / E_N                               N workers of M devices each
//   RHS    = M (SE_MN / SE_N) (E_N / E_MN)                       split when SU^M > RHS
//   gain   = SU^M / RHS                                          of splitting, on M N devices
//
// E is a table, measured by `cadre measure-epochs`.
//
// Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/profile.pb.h"

namespace cadre {

// C. Requires: all >= 0.
double TimeToAccuracy(double step_seconds, double steps_per_epoch, double epochs);

// S: steps are whole, the tail of a pass is dropped. 0 where a pass has no step. Requires: batch >
// 0.
double StepsOfPass(double samples, double batch);

// --- Epochs by number of workers ---

class EpochsCurve {
 public:
  // Several entries of one number of workers count as their mean; one that did not get there makes
  // the number infinite. Errors: CheckEpochsTable's; InvalidArgument for no entry at all, or none
  // that got there.
  static absl::StatusOr<EpochsCurve> FromTable(const v1::EpochsTable& table);

  // Between two numbers that were measured: on the line through them over log2 of the workers;
  // infinite next to one that did not get there. Errors: OutOfRange for fewer or more workers than
  // were measured: what is not measured is not known.
  absl::StatusOr<double> At(double workers) const;

  // As measured, infinite where the target was not reached.
  const std::map<uint32_t, double>& measured() const { return epochs_; }

 private:
  explicit EpochsCurve(std::map<uint32_t, double> epochs) : epochs_(std::move(epochs)) {}

  std::map<uint32_t, double> epochs_;
};

// --- The rule ---

// SU_N. Requires: epochs > 0.
double DataParallelSpeedup(double efficiency, double workers, double epochs_of_one, double epochs);
// SU^M_N.
double HybridSpeedup(double model_speedup, double efficiency, double workers, double epochs_of_one,
                     double epochs);
// RHS: the split of a model over `devices` must be faster than this to pay on `devices` times as
// many as there were workers. Efficiencies and epochs before (N) and after (M N) more data
// parallelism would be added.
double HybridThreshold(double devices, double efficiency, double more_efficiency, double epochs,
                       double more_epochs);

// --- A number of devices ---

// D devices as N workers that share the work of a step's batch by samples, each of them M devices
// that split the model.
struct DevicePlan {
  int64_t workers = 1;
  int64_t model_devices = 1;
  // E, T, and C.
  double epochs = 0;
  double step_seconds = 0;
  double seconds = 0;
};

struct TrainingTimes {
  const EpochsCurve* epochs = nullptr;
  // Of a pass, and of a worker's step.
  double samples = 0;
  int64_t batch_per_worker = 1;
  // T of so many workers of so many devices, T_1 / (SU^M SE_N) of the rule above; nothing: there
  // is no such way to do a step.
  std::function<std::optional<double>(int64_t workers, int64_t model_devices)> step_seconds;
};

// Every way to use so many devices, fewest workers first: N divides them, the table knows that N
// workers get there, a pass has at least a step of theirs, and the step can be done. Of these the
// rule takes the one with the least C. Requires: devices >= 1.
std::vector<DevicePlan> WaysToTrain(int64_t devices, const TrainingTimes& times);
// Requires: there is one.
size_t SoonestOf(const std::vector<DevicePlan>& ways);

// The least number of devices from which on, as far as the table and `most` go, the soonest way
// splits the model. Doubled from 2. Nothing: it never does.
std::optional<int64_t> CrossoverDevices(int64_t most, const TrainingTimes& times);

}  // namespace cadre
