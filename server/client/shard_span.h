// The interval of the parameter order that an aggregator shard stores.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>

#include "tensor/interval.h"

namespace cadre {

// The positions that shard `shard` of `shards` stores of a model of `parameters` elements. The
// shards partition the model, and their sizes differ by at most one.
//
// Requires: 0 <= shard < shards <= 2^31.
constexpr Interval ShardSpan(int64_t parameters, int64_t shard, int64_t shards) {
  const auto cut = [&](int64_t s) {
    // parameters * s / shards without overflow.
    return parameters / shards * s + parameters % shards * s / shards;
  };
  return {cut(shard), cut(shard + 1)};
}

}  // namespace cadre
