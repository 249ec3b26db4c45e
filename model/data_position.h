// Computes the positions of a run's steps in the infinite sequence of samples (the permutations of
// all epochs, one after the other).
//
// A SampleDivision states how the groups share the sequence from one step on: step t of the run
// takes the next groups * batch positions, of which group g takes the g-th part. A change of the
// number of groups begins a new division at the position where the previous one ended, so no
// position is used twice or left out. A run that starts from a checkpoint continues at the
// checkpoint's position, independent of the batch and the groups of the run that wrote it.
//
// Steps are 32-bit in the protocol; sums are computed in 64 bits and clamped.
//
// Thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Samples per group and step.
inline int64_t BatchOf(const v1::RunSpec& spec) { return std::max(1U, spec.batch_per_group()); }

// The division at the start of the run.
// Requires: checkpoint.from_position fits in 63 bits (checked by model/validate.h).
inline v1::SampleDivision InitialDivision(const v1::RunSpec& spec) {
  const v1::Checkpoint& begin = spec.checkpoint();
  v1::SampleDivision division;
  division.set_groups(std::max(1U, spec.cluster().groups()));
  division.set_step(begin.from_step());
  division.set_position(begin.from_position() > 0
                            ? begin.from_position()
                            : uint64_t{begin.from_step()} * division.groups() * BatchOf(spec));
  return division;
}

// First position of `step`. The steps before the division's own belong to an earlier division: only
// a group whose contribution will be refused can be at one, and it gets the division's first
// position.
inline int64_t PositionAt(const v1::SampleDivision& division, int64_t step, int64_t batch) {
  const int64_t steps = std::max<int64_t>(0, step - division.step());
  return static_cast<int64_t>(division.position()) + steps * division.groups() * batch;
}

// First position of the batch of `group` at `step`.
inline int64_t BatchPosition(const v1::SampleDivision& division, int64_t step, int64_t group,
                             int64_t batch) {
  return PositionAt(division, step, batch) + group * batch;
}

// Divides the samples from `step` on among `groups`. Requires: step >= division.step().
inline v1::SampleDivision DivideFrom(const v1::SampleDivision& division, uint32_t step,
                                     uint32_t groups, int64_t batch) {
  v1::SampleDivision next;
  next.set_groups(groups);
  next.set_step(step);
  next.set_position(PositionAt(division, step, batch));
  return next;
}

// First step of the division whose position is at least `position`.
inline uint32_t StepAt(const v1::SampleDivision& division, uint64_t position, int64_t batch) {
  const uint64_t per_step = std::max<uint64_t>(1, division.groups() * batch);
  const uint64_t left = position > division.position() ? position - division.position() : 0;
  const uint64_t step = division.step() + left / per_step + (left % per_step > 0 ? 1 : 0);
  return std::min<uint64_t>(step, std::numeric_limits<uint32_t>::max());
}

// The step at which the stop rules `epochs` and `steps` end the run; 0 if neither is set or the
// number of samples is unknown (0).
inline uint32_t TotalSteps(const v1::RunSpec& spec, const v1::SampleDivision& division,
                           uint64_t train_samples) {
  const v1::Stop& stop = spec.stop();
  if (stop.epochs() == 0 || train_samples == 0) return stop.steps();
  const uint32_t by_epochs = StepAt(division, stop.epochs() * train_samples, BatchOf(spec));
  return stop.steps() == 0 ? by_epochs : std::min(stop.steps(), by_epochs);
}

}  // namespace cadre
