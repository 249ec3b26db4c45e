// The part of a model that an aggregator shard owns.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>

namespace cadre {

// Positions [begin, end) of the parameter order.
struct FlatSpan {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool operator==(const FlatSpan&) const = default;
};

// The positions that shard `shard` of `shards` owns of a model of `parameters` elements. The shards
// partition the model, and their sizes differ by at most one.
//
// Requires: shard < shards.
constexpr FlatSpan ShardSpan(uint64_t parameters, uint32_t shard, uint32_t shards) {
  const auto cut = [&](uint64_t s) {
    // parameters * s / shards without overflow.
    return parameters / shards * s + parameters % shards * s / shards;
  };
  return {cut(shard), cut(uint64_t{shard} + 1)};
}

}  // namespace cadre
