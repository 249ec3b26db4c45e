// Values derived from a run's spec and record: defaults, lengths, boundaries, epochs, stop rules.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// ---- Values of the spec, with defaults.
uint32_t GroupsOf(const v1::RunSpec& spec);
uint32_t RanksPerGroup(const v1::RunSpec& spec);
uint32_t MinRanksPerGroup(const v1::RunSpec& spec);
absl::Duration RejoinWait(const v1::RunSpec& spec);
absl::Duration MinGrace(const v1::RunSpec& spec);
absl::Duration MaxPause(const v1::RunSpec& spec);
// First step of the run: 0, or the checkpoint's.
uint32_t FirstStep(const v1::RunSpec& spec);
// Between evaluations: steps if evaluation.every_steps is set, else epochs.
uint32_t EvaluationInterval(const v1::RunSpec& spec);
// Whether the run uses aggregators, and whether these need a version to make the next one: for the
// outer optimizer, or because differences, or fragments of the model, are exchanged.
bool Averages(const v1::RunSpec& spec);
bool NeedsVersions(const v1::RunSpec& spec);
// Number of aggregators without which the run does not begin.
uint32_t MinAggregators(const v1::RunSpec& spec);

// ---- Values of the record.
// How the groups share the samples from the newest version on.
v1::SampleDivision DivisionOf(const v1::RunRecord& run);
// Whether the run has not ended: it is not DONE, FAILED or STOPPED.
bool IsLive(v1::RunState state);
// Total steps by the stop rules `epochs` and `steps`; 0 if neither is set or the number of samples
// is unknown.
uint32_t TotalSteps(const v1::RunRecord& run);
// Epochs completed at `step`; 0 while the number of samples is unknown.
double EpochAt(const v1::RunRecord& run, uint32_t step);
// Whether an evaluation is due at `step`, and when the first one after `step` is due, in the unit
// of EvaluationInterval.
bool EvaluationDue(const v1::RunRecord& run, uint32_t step);
uint32_t NextEvaluation(const v1::RunRecord& run, uint32_t step);
// The next step at which a group at `step` must contribute: after the steps of a round or, in a run
// that never averages, at the next evaluation; at most the last step.
uint32_t BoundaryAfter(const v1::RunRecord& run, uint32_t step);
// What the round after `version` exchanges (Start.fragment): the whole model if training ends with
// it. Requires: `version` is not newer than that of the run.
uint32_t FragmentAfter(const v1::RunRecord& run, uint32_t version);
// Whether an evaluation has met the accuracy rule.
bool TargetReached(const v1::RunRecord& run);
// Whether training ends at `step`.
bool AtEnd(const v1::RunRecord& run, uint32_t step);

// A duration that a member may have reported: 0 if it is negative or not finite.
float SecondsOrZero(float seconds);

}  // namespace cadre
