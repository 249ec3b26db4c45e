// Functions that the aggregator's tests share: a small run, its messages, files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "tests/base/temporary_folder.h"

namespace cadre::testing {

// A run over one fully connected layer: weight [out, in], then bias [out].
struct SmallRun {
  uint32_t in = 4;
  uint32_t out = 3;
  uint32_t groups = 2;
  uint32_t ranks = 2;
  uint32_t shard = 0;
  uint32_t shards = 1;
  uint64_t seed = 7;
  // Every group has this one; its key consists of zeros, as that of a RoundsClient without a key.
  uint32_t generation = 1;
  std::string run = "run-1";
  std::string lineage = "lineage-a";

  int64_t parameters() const { return int64_t{in} * out + out; }
  v1::OpenRun Open() const;
};

struct Place {
  uint32_t round = 1;
  uint32_t group = 0;
  uint32_t generation = 1;
  uint32_t rank = 0;
  uint64_t samples = 100;
};

// The coordinator's message that tells an aggregator the key of a generation (see SmallRun).
v1::Fence FenceOf(const std::string& run, uint32_t group, uint32_t generation);
// The header of a contribution of the positions [begin, end), signed.
v1::ContributionHeader Header(const SmallRun& run, const Place& place, int64_t begin, int64_t end,
                              uint32_t chunk_elements);
v1::Chunk MakeChunk(uint32_t index, std::span<const float> values);
// A request of a rank of group 0, signed.
v1::PullRequest PullOf(const SmallRun& run, uint32_t version, int64_t begin, int64_t end);

struct Part {
  uint32_t group = 0;
  uint32_t generation = 1;
  uint32_t ranks = 1;
  uint64_t samples = 100;
};
v1::Apply MakeApply(const SmallRun& run, uint32_t round, const std::vector<Part>& parts);

// `count` values that depend on `salt`, with many different bits.
std::vector<float> Values(uint64_t salt, int64_t count);

// Whether all bits are equal, including those of NaN and -0.0.
bool SameBits(std::span<const float> a, std::span<const float> b);

std::string ReadAll(const std::string& path);
void WriteAll(const std::string& path, absl::string_view bytes);
// Names of the files in a folder, sorted.
std::vector<std::string> Files(const std::string& folder);

}  // namespace cadre::testing
