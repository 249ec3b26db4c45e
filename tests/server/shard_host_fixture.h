// A shard host on a folder of its own, with a small run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/shard_host.h"
#include "tests/server/testing.h"

namespace cadre::testing {

inline constexpr uint32_t kChunkValues = 4;

class ShardHostTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }

  absl::StatusOr<std::unique_ptr<ShardHost>> HostOn(const std::string& folder) {
    return ShardHost::Open({.data_dir = folder,
                            .name = "agg-0",
                            .counters = &counters_,
                            .verify = verify_,
                            .free_bytes = free_bytes_});
  }

  void StartOn(const std::string& folder) {
    host_.reset();
    auto host = HostOn(folder);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
  }

  // Starts a new host on the folder, as if the process had been killed and restarted.
  void Restart() {
    ASSERT_NO_FATAL_FAILURE(StartOn(folder_.path()));
    // Keys are not stored: the coordinator sends them again.
    for (uint32_t group = 0; group < run_.groups; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  v1::RunOpened Open() {
    const auto opened = host_->OpenRun(run_.Open());
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.value_or(v1::RunOpened());
  }

  absl::Status PutChunks(Staging& staging, const std::vector<float>& values, uint32_t until) {
    const uint32_t chunk = staging.file->head().block_bytes / sizeof(float);
    for (uint32_t i = staging.grant.next_chunk; i < until; ++i) {
      const size_t begin = size_t{i} * chunk;
      const size_t size = std::min<size_t>(chunk, values.size() - begin);
      const auto put = host_->Put(staging, MakeChunk(i, std::span(values).subspan(begin, size)));
      if (!put.ok()) return put.status();
      EXPECT_EQ(*put, i + 1 == staging.grant.chunks);
    }
    return absl::OkStatus();
  }

  absl::Status Stage(const Place& place, const std::vector<float>& values, int64_t begin = 0,
                     uint32_t chunk = kChunkValues) {
    auto staging = host_->Stage(Header(run_, place, begin, begin + values.size(), chunk));
    if (!staging.ok()) return staging.status();
    if (auto put = PutChunks(*staging, values, staging->grant.chunks); !put.ok()) return put;
    return host_->Finish(*staging);
  }

  absl::StatusOr<std::vector<float>> Pull(uint32_t version, int64_t begin, int64_t end) {
    auto pull = host_->Pull(PullOf(run_, version, begin, end));
    if (!pull.ok()) return pull.status();
    return Drain(**pull);
  }

  static absl::StatusOr<std::vector<float>> Drain(VersionPull& pull) {
    std::vector<float> values;
    while (pull.left() > 0) {
      float piece[5];
      const auto n = pull.Next({reinterpret_cast<char*>(piece), sizeof(piece)});
      if (!n.ok()) return n.status();
      values.insert(values.end(), piece, piece + *n);
    }
    return values;
  }

  std::vector<float> PullAll(uint32_t version) {
    const auto values = Pull(version, 0, run_.parameters());
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? *values : std::vector<float>();
  }

  v1::Applied Apply(const v1::Apply& apply) {
    const auto applied = host_->Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return applied.ok() ? *applied : v1::Applied();
  }

  static v1::Apply WithMomentum(v1::Apply order) {
    v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
    nesterov.set_learning_rate(0.7F);
    nesterov.set_momentum(0.9F);
    nesterov.set_every_rounds(1);
    return order;
  }

  std::string RunPath(const std::string& name) const {
    return folder_.path() + "/" + run_.run + "/" + name;
  }

  TemporaryFolder folder_;
  SmallRun run_;
  Counters counters_;
  // Options of the hosts that are started from now on.
  bool verify_ = true;
  std::function<absl::StatusOr<int64_t>()> free_bytes_;
  std::unique_ptr<ShardHost> host_;
};

}  // namespace cadre::testing
