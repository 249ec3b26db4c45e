// Which versions of a run the aggregators keep (Averaging.keep_versions).
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Besides the newest two, the newest `count` of the versions that are multiples of `every`.
struct KeptVersions {
  uint32_t every = 8;
  uint32_t count = 1;
};

inline constexpr uint32_t kMaxKeptVersions = 64;
// Further versions that remain while groups load them.
inline constexpr uint32_t kMaxLoadedVersions = 2;

// Requires: ValidateRunSpec has accepted the field.
KeptVersions KeptVersionsOf(const v1::Averaging& averaging);

// The largest number of versions that are kept besides the newest two.
uint32_t MaxOlderVersions(const v1::Averaging& averaging);

}  // namespace cadre
