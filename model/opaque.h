// Rules of runs whose model Cadre does not know (run.proto, OpaqueModel).
//
// Thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Whether the first version has the values of the group that begins first: version 0 is then all
// zeros, and round 1 has the values of one group, before its first step, as version 1.
inline bool BeginsWithGroupValues(const v1::RunSpec& spec) {
  return spec.model().has_opaque() && spec.checkpoint().from().empty();
}

// Samples of an epoch of an opaque model.
inline uint64_t EpochSamples(const v1::RunSpec& spec) {
  const uint64_t samples = spec.model().opaque().epoch_samples();
  if (samples > 0) return samples;
  return std::max<uint64_t>(1, uint64_t{spec.stop().steps()} *
                                   std::max(1U, spec.batch_per_group()) *
                                   std::max(1U, spec.cluster().groups()));
}

// How the parameters of a program differ from those of its run: name and both sides of the first
// difference in order, number, name, shape, role or frozen values. Empty if they are equal.
std::string ParametersDifference(const v1::OpaqueModel& run, const v1::OpaqueModel& program);

}  // namespace cadre
