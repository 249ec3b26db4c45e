// What follows from a run's spec and its record: lengths, boundaries, epochs, stop rules.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// ---- The spec with its defaults filled in.
uint32_t GroupsOf(const v1::RunSpec& spec);
uint32_t RanksPerGroup(const v1::RunSpec& spec);
uint32_t MinRanksPerGroup(const v1::RunSpec& spec);
absl::Duration RejoinWait(const v1::RunSpec& spec);
absl::Duration MinGrace(const v1::RunSpec& spec);
// Step that the run counts from: 0, or its checkpoint's.
uint32_t FirstStep(const v1::RunSpec& spec);
uint32_t EvaluationEpochs(const v1::RunSpec& spec);
// What its groups compute on; unspecified: any kind, but each group on one. Precisions that only
// GPUs have ask for CUDA, whatever cluster.device says.
v1::ComputeDevice DeviceWanted(const v1::RunSpec& spec);
// The kind of a device as workers name theirs: "cpu:4", "cuda:NVIDIA H200".
v1::ComputeDevice KindOfDevice(absl::string_view device);
// Whether the run uses aggregators.
bool Averages(const v1::RunSpec& spec);

// ---- The record.
// Not DONE, FAILED or STOPPED.
bool IsLive(v1::RunState state);
// Steps that the run takes by its epochs and steps rules; 0 when neither is given or the number of
// samples is not known yet.
uint32_t TotalSteps(const v1::RunRecord& run);
// Epochs that `step` steps of all groups are; 0 while the number of samples is not known.
double EpochAt(const v1::RunRecord& run, uint32_t step);
// Whether an evaluation is due at `step`; the epoch of the one after it.
bool EvaluationDue(const v1::RunRecord& run, uint32_t step);
uint32_t EvaluationEpochAfter(const v1::RunRecord& run, uint32_t step);
// Where training that stands at `step` must contribute next: after every_steps or, in a run that
// never averages, at the next evaluation; at the end at the latest.
uint32_t BoundaryAfter(const v1::RunRecord& run, uint32_t step);
// Whether an evaluation has met the accuracy rule.
bool TargetReached(const v1::RunRecord& run);
// Whether training is over at `step`.
bool AtEnd(const v1::RunRecord& run, uint32_t step);

}  // namespace cadre
