#include "tests/server/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/substitute.h"
#include "base/crc32c.h"
#include "base/protocol.h"
#include "base/random.h"
#include "base/secret_key.h"
#include "server/client/proof.h"
#include "tensor/interval.h"
#include "tests/base/expect.h"

namespace cadre::testing {
namespace {

void AddRanges(const SmallRun& run, int64_t begin, int64_t end,
               google::protobuf::RepeatedPtrField<v1::Range>* ranges) {
  const int64_t starts[] = {0, int64_t{run.in} * run.out, run.parameters()};
  for (int tensor = 0; tensor < 2; ++tensor) {
    const Interval part = Intersect({begin, end}, {starts[tensor], starts[tensor + 1]});
    if (part.empty()) continue;
    v1::Range* range = ranges->Add();
    range->set_tensor(tensor);
    range->set_begin(part.begin - starts[tensor]);
    range->set_end(part.end - starts[tensor]);
  }
}

}  // namespace

v1::OpenRun SmallRun::Open() const {
  v1::OpenRun open;
  open.set_run(run);
  open.set_lineage(lineage);
  open.set_shard(shard);
  open.set_shards(shards);
  for (uint32_t group = 0; group < groups; ++group) {
    (*open.mutable_generations())[group] = generation;
    (*open.mutable_keys())[group] = KeyBytes({});
  }
  v1::RunSpec& spec = *open.mutable_spec();
  spec.set_seed(seed);
  spec.mutable_cluster()->set_groups(groups);
  spec.mutable_cluster()->set_ranks_per_group(ranks);
  *spec.mutable_model() =
      Parse<v1::Model>(absl::Substitute("input { channels: $0 height: 1 width: 1 }"
                                        "layer { name: 'fc' fully_connected { out_features: $1 } }"
                                        "layer { name: 'loss' softmax_cross_entropy {} }",
                                        in, out));
  return open;
}

v1::Fence FenceOf(const std::string& run, uint32_t group, uint32_t generation) {
  v1::Fence fence;
  fence.set_run(run);
  fence.set_group(group);
  fence.set_generation(generation);
  fence.set_key(KeyBytes({}));
  return fence;
}

v1::ContributionHeader Header(const SmallRun& run, const Place& place, int64_t begin, int64_t end,
                              uint32_t chunk_elements) {
  v1::ContributionHeader header;
  header.set_protocol(kProtocol);
  header.set_run(run.run);
  header.set_lineage(run.lineage);
  header.set_group(place.group);
  header.set_generation(place.generation);
  header.set_rank(place.rank);
  header.set_round(place.round);
  header.set_base_version(place.round - 1);
  header.set_samples(place.samples);
  header.set_codec(v1::CODEC_FP32);
  header.set_chunk_elements(chunk_elements);
  AddRanges(run, begin, end, header.mutable_ranges());
  Sign({}, "nonce", header);
  return header;
}

v1::Chunk MakeChunk(uint32_t index, std::span<const float> values) {
  v1::Chunk chunk;
  chunk.set_index(index);
  chunk.mutable_data()->assign(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  chunk.set_crc32c(Crc32c(chunk.data()));
  return chunk;
}

v1::PullRequest PullOf(const SmallRun& run, uint32_t version, int64_t begin, int64_t end) {
  v1::PullRequest request;
  request.set_protocol(kProtocol);
  request.set_run(run.run);
  request.set_lineage(run.lineage);
  request.set_version(version);
  request.set_generation(run.generation);
  AddRanges(run, begin, end, request.mutable_ranges());
  Sign({}, "nonce", request);
  return request;
}

v1::Apply MakeApply(const SmallRun& run, uint32_t round, const std::vector<Part>& parts) {
  v1::Apply apply;
  apply.set_run(run.run);
  apply.set_shard(run.shard);
  apply.set_round(round);
  for (const Part& part : parts) {
    v1::Participant& participant = *apply.add_participants();
    participant.set_group(part.group);
    participant.set_generation(part.generation);
    participant.set_ranks(part.ranks);
    participant.set_samples(part.samples);
  }
  return apply;
}

std::vector<float> Values(uint64_t salt, int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = RandomUniform(salt, RandomStream::kTest, 0, i) - 0.5F;
  }
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteAll(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), std::ssize(bytes));
  EXPECT_TRUE(file.flush().good()) << path;
}

std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cadre::testing
