// Computes the positions of a run's steps in the infinite sequence of samples (the permutations of
// all epochs, one after the other).
//
// A step consumes groups x batch positions. A run that starts from a checkpoint continues at the
// checkpoint's position, independent of the batch and the groups of the run that wrote it.
//
// Thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The first step of a run and its position.
struct DataOrigin {
  int64_t step = 0;
  int64_t position = 0;
};

// Samples of one step of all groups.
inline int64_t SamplesPerStep(const v1::RunSpec& spec) {
  return int64_t{std::max(1U, spec.batch_per_group())} *
         int64_t{std::max(1U, spec.cluster().groups())};
}

// Requires: checkpoint.from_position fits in 63 bits (checked by model/validate.h).
inline DataOrigin DataOriginOf(const v1::RunSpec& spec) {
  const v1::Checkpoint& begin = spec.checkpoint();
  const int64_t step = begin.from_step();
  const int64_t position = begin.from_position();
  return {step, position > 0 ? position : step * SamplesPerStep(spec)};
}

}  // namespace cadre
