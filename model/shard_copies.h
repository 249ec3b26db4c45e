// Which aggregators hold copies of which shards (Averaging.copies). The copy of a shard is on the
// aggregator of the next shard.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

inline constexpr uint32_t kMaxCopies = 2;

// Whether each of so many shards has a copy.
inline bool HasCopies(const v1::Averaging& averaging, uint32_t shards) {
  return averaging.copies() == kMaxCopies && shards > 1;
}
// The shard whose aggregator holds the copy.
inline uint32_t CopyHolder(uint32_t shard, uint32_t shards) { return (shard + 1) % shards; }
// The shard of which the aggregator of `holder` holds the copy.
inline uint32_t CopiedShard(uint32_t holder, uint32_t shards) {
  return (holder + shards - 1) % shards;
}

}  // namespace cadre
