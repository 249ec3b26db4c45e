// A shard host with a run whose contributions and versions are frames of differences.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/coding.h"
#include "model/frame.h"
#include "server/replay.h"
#include "server/shard_host.h"
#include "tests/server/testing.h"

namespace cadre::testing {

class CodedRoundsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A weight of two units, and a bias.
    run_.in = 100;
    run_.out = 50;
    run_.ranks = 1;
    open_ = run_.Open();
    v1::Averaging& averaging = *open_.mutable_spec()->mutable_averaging();
    averaging.mutable_up()->set_codec(v1::CODEC_STAT2);
    averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
    units_ = std::make_unique<ExchangeUnits>(*ParameterIndex::FromModel(open_.spec().model()));
    Restart();
    ASSERT_TRUE(host_->OpenRun(open_).ok());
    initial_ = *Pull(0, {0, size()});
  }
  // Another run.
  void OpenWithFragments(uint32_t fragments) {
    run_.run = "run-of-fragments";
    open_.set_run(run_.run);
    open_.mutable_spec()->mutable_averaging()->mutable_fragments()->set_count(fragments);
    ASSERT_TRUE(host_->OpenRun(open_).ok());
  }
  void Restart() {
    host_.reset();
    ShardHost::Options options{folder_.path(), "agg-0", &counters_};
    options.threads = 2;
    options.archive = true;
    auto host = ShardHost::Open(options);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    for (uint32_t group = 0; group < 2; ++group) {
      host_->Fence(FenceOf(run_.run, group, run_.generation));
    }
  }

  const v1::Averaging& averaging() const { return open_.spec().averaging(); }
  int64_t size() const { return run_.parameters(); }
  std::string FrameOf(const std::vector<float>& change, int64_t begin = 0) const {
    return FrameOf(change, std::vector<Interval>{{begin, begin + std::ssize(change)}});
  }
  std::string FrameOf(const std::vector<float>& change,
                      const std::vector<Interval>& positions) const {
    std::string frame;
    EXPECT_TRUE(
        EncodeFrame(units_->In(positions), CodecOf(*CodingOf(averaging().up())), change, &frame)
            .ok());
    return frame;
  }
  v1::ContributionHeader FrameHeader(const Place& place, const std::string& frame,
                                     Interval positions) const {
    return FrameHeader(place, frame, std::vector<Interval>{positions});
  }
  v1::ContributionHeader FrameHeader(const Place& place, const std::string& frame,
                                     const std::vector<Interval>& positions) const {
    v1::ContributionHeader header = Header(run_, place, 0, 0, 1 << 10);
    for (const Interval& interval : positions) {
      header.mutable_ranges()->MergeFrom(
          Header(run_, place, interval.begin, interval.end, 1 << 10).ranges());
    }
    header.set_codec(averaging().up().codec());
    header.set_frame_elements(frame.size() / sizeof(float));
    return header;
  }
  // What a round exchanges in a run with `fragments`.
  std::vector<Interval> ExchangedIn(uint32_t round, uint32_t fragments) const {
    return units_->FragmentIn({0, size()}, FragmentIn(round, fragments), fragments);
  }
  static uint32_t FragmentIn(uint32_t round, uint32_t fragments) {
    return fragments == 1 ? 0 : 1 + (round - 1) % fragments;
  }
  absl::Status Stage(const Place& place, const std::string& frame) {
    return StageAs(FrameHeader(place, frame, {0, size()}), frame);
  }
  absl::Status StageAs(const v1::ContributionHeader& header, const std::string& frame) {
    auto staging = host_->Stage(header);
    if (!staging.ok()) return staging.status();
    std::vector<float> elements(frame.size() / sizeof(float));
    std::memcpy(elements.data(), frame.data(), elements.size() * sizeof(float));
    for (uint32_t i = staging->grant.next_chunk; i < staging->grant.chunks; ++i) {
      const size_t begin = size_t{i} << 10;
      const auto put = host_->Put(
          *staging, MakeChunk(i, std::span(elements).subspan(
                                     begin, std::min<size_t>(1 << 10, elements.size() - begin))));
      if (!put.ok()) return put.status();
    }
    return host_->Finish(*staging);
  }
  v1::Apply Order(uint32_t round, const std::vector<Part>& parts) const {
    v1::Apply order = MakeApply(run_, round, parts);
    *order.mutable_up() = *CodingOf(averaging().up());
    *order.mutable_down() = *CodingOf(averaging().down());
    v1::OuterNesterov& nesterov = *order.mutable_outer()->mutable_optimizer()->mutable_nesterov();
    nesterov.set_learning_rate(0.7F);
    nesterov.set_momentum(0.9F);
    nesterov.set_every_rounds(1);
    return order;
  }
  absl::StatusOr<std::vector<float>> Pull(uint32_t version, Interval positions,
                                          std::optional<uint64_t> frame_from = {}) {
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    if (frame_from) request.set_frame_from(*frame_from);
    auto pull = host_->Pull(request);
    if (!pull.ok()) return pull.status();
    std::vector<float> elements((*pull)->left());
    const auto read =
        (*pull)->Next({reinterpret_cast<char*>(elements.data()), elements.size() * sizeof(float)});
    if (!read.ok()) return read.status();
    return elements;
  }
  // What a group makes of a version and the frame of the next.
  std::vector<float> Follow(const std::vector<float>& before, uint32_t version,
                            Interval positions) {
    v1::PullRequest request = PullOf(run_, version, positions.begin, positions.end);
    request.set_frame_from(0);
    auto pull = host_->Pull(request);
    EXPECT_TRUE(pull.ok()) << pull.status();
    if (!pull.ok()) return {};
    std::string frame((*pull)->left() * sizeof(float), 0);
    EXPECT_TRUE((*pull)->Next({frame.data(), frame.size()}).ok());
    const uint32_t fragments = FragmentsOf(averaging());
    const auto changed = units_->FragmentIn(positions, (*pull)->frame().fragment, fragments);
    std::vector<float> difference;
    EXPECT_TRUE(
        DecodeFrame(units_->In(changed), CodecOf(*CodingOf(averaging().down())), frame, &difference)
            .ok());
    std::vector<float> after(before.begin() + positions.begin, before.begin() + positions.end);
    auto change = difference.begin();
    for (const Interval& interval : changed) {
      for (int64_t p = interval.begin; p < interval.end; ++p) {
        after[p - positions.begin] += *change++;
      }
    }
    return after;
  }
  std::string RunFolder() const { return absl::StrCat(folder_.path(), "/", run_.run); }
  absl::StatusOr<ReplayedShard> Replay() {
    const TemporaryFolder scratch;
    uint32_t calls = 0;
    auto shard = ReplayShard(RunFolder(), scratch.path(), [&](uint32_t version, uint32_t versions) {
      EXPECT_EQ(version, ++calls);
      EXPECT_GE(versions, version);
    });
    return shard;
  }

  SmallRun run_;
  v1::OpenRun open_;
  std::unique_ptr<ExchangeUnits> units_;
  TemporaryFolder folder_;
  Counters counters_;
  std::unique_ptr<ShardHost> host_;
  // Version 0.
  std::optional<std::vector<float>> initial_;
};

}  // namespace cadre::testing
