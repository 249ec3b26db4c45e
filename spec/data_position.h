// Where a run's steps stand in the endless sequence of samples.
//
// A step takes groups x batch positions, wherever the step before ended. A run that begins from a
// checkpoint goes on at the checkpoint's position, whatever batch and groups it was made with.
//
// Thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Where counting begins: step `step` reads on from `position`.
struct DataOrigin {
  int64_t step = 0;
  int64_t position = 0;
};

// Samples that all groups together take in a step.
inline int64_t SamplesPerStep(const v1::RunSpec& spec) {
  return int64_t{std::max(1U, spec.batch_per_group())} *
         int64_t{std::max(1U, spec.cluster().groups())};
}

// Requires: checkpoint.from_position fits in 63 bits (spec/validate.h sees to it).
inline DataOrigin DataOriginOf(const v1::RunSpec& spec) {
  const v1::Checkpoint& begin = spec.checkpoint();
  const int64_t step = begin.from_step();
  const auto position = static_cast<int64_t>(begin.from_position());
  return {step, position > 0 ? position : step * SamplesPerStep(spec)};
}

}  // namespace cadre
