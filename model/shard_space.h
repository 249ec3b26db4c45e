// How many bytes a shard takes on the disk of its aggregator. The aggregator refuses a run that
// does not fit, and the coordinator chooses aggregators with the same numbers.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The error of an aggregator that has too little space for the shard of a new run begins with it.
inline constexpr char kTooLittleSpace[] = "the disk has too little space";

// Bytes that a round of the run needs on an aggregator that stores a shard of `elements` values and
// the copy of a shard of `copied` values (0: none), up to a few units: the versions that are kept
// and the one that is being made, with their outer states, the frames of versions, and the
// contributions of all groups that the run has at its start. Not counted: groups that are added
// later, a damaged version that is kept, headers and checksums (below 0.1 %).
int64_t SpaceOfShard(const v1::RunSpec& spec, int64_t elements, int64_t copied);
// The part of it for each of the two versions of the copy.
int64_t SpaceOfCopy(const v1::Averaging& averaging, int64_t copied);
// The same for the largest shard of a model of `parameters` elements that is divided among `shards`
// aggregators. Requires: shards > 0.
int64_t SpaceOfLargestShard(const v1::RunSpec& spec, uint64_t parameters, uint32_t shards);

// Bytes that a run which has ended takes on all aggregators together while these store `versions`
// versions of it. Not counted: archives, headers and checksums.
int64_t SpaceOfEnded(const v1::RunSpec& spec, uint64_t parameters, uint32_t versions);

}  // namespace cadre
