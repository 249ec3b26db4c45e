// Which aggregators store the shards of a new run.
//
// An aggregator is usable if it is connected, is not cordoned, has the free space that a shard
// needs, and has not refused one. Of more than the run requests, those with the fewest shards are
// chosen, and among these those with the most free space. A run that requests no number uses all:
// an aggregator whose disk is too small is left out, although the shards of the others become
// larger by that.
//
// Thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct ShardCandidate {
  std::string name;
  bool connected = true;
  bool cordoned = false;
  // It has not removed what it had of this run before.
  bool leaving = false;
  // It has refused a shard of this run for lack of space, or failed to take one, a short time ago.
  bool full = false;
  // Free bytes that are not reserved for other runs; nullopt: not reported yet, which counts as
  // enough, because the aggregator refuses a shard that does not fit.
  std::optional<int64_t> free;
  // Shards of live runs.
  int shards = 0;
};

struct ShardPlacement {
  // Names of the aggregators, by shard; empty if there are too few.
  std::vector<std::string> chosen;
  // Why each aggregator with too little space is left out; only for a run that uses all.
  std::vector<std::string> left_out;
  // What the run waits for if there are too few.
  std::string reason;
};

// `parameters`: of the model; 0: not known, so that any space is enough.
ShardPlacement PlaceShards(const v1::RunSpec& spec, uint64_t parameters,
                           std::vector<ShardCandidate> candidates);
// The aggregator that takes one of the `shards` shards of a run from another one. Requires: no
// candidate stores a shard of the run.
ShardPlacement PlaceOneShard(const v1::RunSpec& spec, uint64_t parameters, size_t shards,
                             const std::vector<ShardCandidate>& candidates);

}  // namespace cadre
