// A rank that codes its contributions on a device contributes the same bits as one that codes them
// on the host, and carries the same bits over: in time, late, and after its group is formed again.
// The device is emulated; the shards are real.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "member/shard_exchange.h"
#include "member/thread_runtime.h"
#include "model/coding.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/member/recording_control.h"
#include "tests/server/rounds_server.h"
#include "tests/server/testing.h"
#include "worker/train/device_contribution.h"

namespace cadre::testing {
namespace {

constexpr uint32_t kShards = 2;

enum class CodedOn { kHost, kDevice };

class ShardAddresses final : public RecordingControl {
 public:
  explicit ShardAddresses(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}
  ShardLocation LocationOf(uint32_t shard) const override { return addresses_.at(shard); }

 private:
  const std::vector<std::string> addresses_;
};

ContributionCoder::Layout LayoutOf(const ExchangeUnits& units, int64_t size,
                                   const v1::Averaging& averaging) {
  ContributionCoder::Layout layout{.part = {0, size}, .codec = CodecOf(*CodingOf(averaging.up()))};
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    const auto of_shard = units.In(units.PartOf(shard, kShards));
    layout.shards.emplace_back(of_shard.begin(), of_shard.end());
  }
  return layout;
}

// The only rank of a group, whose weights are on an emulated device if contributions are coded
// there.
class CodingRank {
 public:
  CodingRank(CodedOn coded_on, const v1::OpenRun& open, uint32_t group,
             const std::vector<std::string>& addresses)
      : index_(*ParameterIndex::FromModel(open.spec().model())),
        units_(index_),
        control_(addresses),
        values_(index_.size()),
        owned_{{{0, index_.size()}, values_}} {
    assignment_.mutable_place()->set_run(open.run());
    assignment_.mutable_place()->set_group(group);
    assignment_.mutable_place()->set_generation(1);
    assignment_.set_lineage(open.lineage());
    *assignment_.mutable_spec() = open.spec();
    for (uint32_t shard = 0; shard < kShards; ++shard) assignment_.add_shards();
    if (coded_on == CodedOn::kDevice) MakeCoder();
    exchange_.emplace(ThreadRuntime::Insecure(), assignment_, index_, owned_, control_,
                      cancellation_, progress_,
                      ShardExchange::Options{.units = &units_, .coder = coder_.get()});
  }

  std::vector<float>& values() { return values_; }
  ShardExchange& exchange() { return *exchange_; }

  void AdoptInitial() {
    exchange_->AdoptInitial();
    StoreAdopted();
  }
  absl::Status Stage(uint32_t round) {
    if (coder_ != nullptr) {
      StoreValues();
      CADRE_RETURN_IF_ERROR(coder_->TakeChange());
      // What the exchange may no longer read.
      values_.assign(values_.size(), std::nanf(""));
    }
    Traffic ignored;
    exchange_->BeginStage(round, /*samples=*/100);
    return exchange_->Finish(&ignored);
  }
  uint32_t Adopt(uint32_t version, bool included) {
    Traffic ignored;
    exchange_->BeginPull(version, included);
    EXPECT_EQ(exchange_->Finish(&ignored), absl::OkStatus());
    const uint32_t dropped = exchange_->Adopt();
    StoreAdopted();
    return dropped;
  }
  std::vector<float> Carried() {
    std::vector<float> carried(index_.size());
    EXPECT_EQ(exchange_->Carried(carried), absl::OkStatus());
    return carried;
  }
  struct Keepable {
    std::vector<float> change;
    std::vector<float> left_out;
  };
  Keepable WhatMayBeKept() {
    Keepable kept{std::vector<float>(index_.size()), std::vector<float>(index_.size())};
    EXPECT_EQ(exchange_->WhatMayBeKept(kept.change, kept.left_out), absl::OkStatus());
    return kept;
  }

 private:
  // The slices have another order in memory than in the model, and cut units.
  void MakeCoder() {
    device_ = MakeEmulatedRank({.memory = size_t{64} << 20});
    weights_ = DeviceArray<float>(*device_.device, index_.size(), "weights");
    std::vector<Owned> slices;
    int64_t end = index_.size();
    for (const int64_t begin : {int64_t{7000}, int64_t{6997}, int64_t{1000}, int64_t{0}}) {
      const int64_t offset = index_.size() - end;
      slices.push_back({{begin, end}, weights_.span().subspan(offset, end - begin)});
      end = begin;
    }
    slices_ = slices;
    transports_ = MakeTransports(Wire::kThreads, 1);
    group_.emplace(*transports_[0], std::vector<int>{0});
    auto made = DeviceContribution::Make(
        *device_.kernels, slices, LayoutOf(units_, index_.size(), assignment_.spec().averaging()),
        *group_, *group_);
    ASSERT_TRUE(made.ok()) << made.status();
    coder_ = *std::move(made);
  }
  void StoreValues() {
    for (const Owned& slice : slices_) {
      device_.device->CopyIn(values_.data() + slice.positions.begin, slice.values.data(),
                             slice.values.size_bytes());
    }
  }
  void StoreAdopted() {
    if (coder_ == nullptr) return;
    StoreValues();
    EXPECT_EQ(coder_->Adopt(), absl::OkStatus());
  }

  v1::Assignment assignment_;
  const ParameterIndex index_;
  const ExchangeUnits units_;
  ShardAddresses control_;
  Cancellation cancellation_;
  TrainerProgress progress_;
  std::vector<float> values_;
  const std::vector<Owned> owned_;
  EmulatedRank device_;
  DeviceArray<float> weights_;
  std::vector<Owned> slices_;
  Transports transports_;
  std::optional<Communicator> group_;
  std::unique_ptr<ContributionCoder> coder_;
  std::optional<ShardExchange> exchange_;
};

// A run with two groups of one rank; the first one codes on the host or on a device.
class CodedRun {
 public:
  CodedRun(CodedOn coded_on, const v1::Averaging& averaging) : coded_on_(coded_on) {
    run_.in = 150;
    run_.out = 70;
    run_.ranks = 1;
    run_.shards = kShards;
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      servers_.push_back(std::make_unique<Server>());
      addresses_.push_back(servers_.back()->server.address());
      run_.shard = shard;
      open_ = run_.Open();
      *open_.mutable_spec()->mutable_averaging() = averaging;
      const auto opened = servers_.back()->server.host().OpenRun(open_);
      EXPECT_EQ(opened.value_or(v1::RunOpened()).error(), "") << opened.status();
    }
    Restart(0);
    ranks_[1] = std::make_unique<CodingRank>(CodedOn::kHost, open_, 1, addresses_);
    // Pulled, so that both have the bits of the shards.
    for (auto& rank : ranks_) {
      rank->Adopt(0, /*included=*/false);
      rank->AdoptInitial();
    }
  }

  CodingRank& rank(uint32_t group) { return *ranks_[group]; }
  // Group 0 is formed again.
  CodingRank& Restart(uint32_t version) {
    ranks_[0] = std::make_unique<CodingRank>(coded_on_, open_, 0, addresses_);
    if (version > 0) ranks_[0]->Adopt(version, /*included=*/false);
    return *ranks_[0];
  }
  // The group trains and stages.
  absl::Status Contribute(uint32_t group, uint32_t round) {
    CodingRank& rank = *ranks_[group];
    const std::vector<float> change = Values(10 * round + group, run_.parameters());
    for (size_t i = 0; i < change.size(); ++i) {
      rank.values()[i] += 0.01F * change[i] * (i % 50 == 0 ? 20.0F : 1.0F);
    }
    return rank.Stage(round);
  }
  void Apply(uint32_t round, const std::vector<Part>& parts) {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      run_.shard = shard;
      v1::Apply order = MakeApply(run_, round, parts);
      const v1::Averaging& averaging = open_.spec().averaging();
      if (const auto up = CodingOf(averaging.up())) *order.mutable_up() = *up;
      if (const auto down = CodingOf(averaging.down())) *order.mutable_down() = *down;
      const auto applied = servers_[shard]->server.host().Apply(order);
      ASSERT_TRUE(applied.ok()) << applied.status();
      ASSERT_EQ(applied->error(), "");
      ASSERT_EQ(applied->missing_size(), 0);
    }
  }

 private:
  struct Server {
    const TemporaryFolder folder;
    RoundsServer server{folder.path()};
  };

  const CodedOn coded_on_;
  SmallRun run_;
  v1::OpenRun open_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<CodingRank> ranks_[2];
};

class DeviceContributionTest : public ::testing::TestWithParam<v1::Codec> {
 protected:
  DeviceContributionTest() {
    averaging_.set_every_steps(4);
    averaging_.mutable_up()->set_codec(GetParam());
    averaging_.mutable_down()->set_codec(v1::CODEC_BF16);
  }

  // Calls the body for both runs, and compares what it leaves in the first group.
  void OnBoth(const std::function<void(CodedRun& run)>& body) {
    body(*host_);
    body(*device_);
    EXPECT_TRUE(SameBits(device_->rank(0).values(), host_->rank(0).values()));
    EXPECT_TRUE(SameBits(device_->rank(0).Carried(), host_->rank(0).Carried()));
  }
  void Start() {
    host_.emplace(CodedOn::kHost, averaging_);
    device_.emplace(CodedOn::kDevice, averaging_);
  }

  v1::Averaging averaging_;
  std::optional<CodedRun> host_;
  std::optional<CodedRun> device_;
};

TEST_P(DeviceContributionTest, ContributesTheBitsOfTheHost) {
  averaging_.mutable_up()->set_error_feedback(0.9F);
  Start();
  std::vector<float> carried;
  for (uint32_t round = 1; round <= 4; ++round) {
    SCOPED_TRACE(round);
    OnBoth([&](CodedRun& run) {
      for (const uint32_t group : {0, 1}) ASSERT_EQ(run.Contribute(group, round), absl::OkStatus());
      run.Apply(round, {{.group = 0}, {.group = 1}});
      // As it is kept for the next generation, before the version is adopted.
      std::vector<float> kept = run.rank(0).WhatMayBeKept().left_out;
      for (float& value : kept) value *= 0.9F;
      for (const uint32_t group : {0, 1}) {
        ASSERT_EQ(run.rank(group).Adopt(round, /*included=*/true), 0U);
      }
      EXPECT_TRUE(SameBits(kept, run.rank(0).Carried()));
      carried = kept;
    });
  }
  EXPECT_GT(std::inner_product(carried.begin(), carried.end(), carried.begin(), 0.0), 0);
}

TEST_P(DeviceContributionTest, CarriesLateChangesAsTheHost) {
  averaging_.mutable_staleness()->set_max_rounds(2);
  Start();
  // Two rounds late.
  const float weight = GetParam() == v1::CODEC_TOPK ? std::pow(0.95F, 2.0F) : 1;
  OnBoth([&](CodedRun& run) {
    ASSERT_EQ(run.Contribute(0, 1), absl::OkStatus());
    std::vector<float> change = run.rank(0).WhatMayBeKept().change;
    for (float& value : change) value *= weight;
    for (const uint32_t round : {1, 2}) {
      ASSERT_EQ(run.Contribute(1, round), absl::OkStatus());
      run.Apply(round, {{.group = 1}});
      run.rank(1).Adopt(round, /*included=*/true);
    }
    ASSERT_EQ(run.rank(0).Adopt(2, /*included=*/false), 0U);
    EXPECT_TRUE(SameBits(change, run.rank(0).Carried()));
  });
  OnBoth([](CodedRun& run) {
    for (const uint32_t group : {0, 1}) ASSERT_EQ(run.Contribute(group, 3), absl::OkStatus());
    run.Apply(3, {{.group = 0}, {.group = 1}});
    for (const uint32_t group : {0, 1}) run.rank(group).Adopt(3, /*included=*/true);
  });
  // Too late: the change is dropped.
  OnBoth([](CodedRun& run) {
    ASSERT_EQ(run.Contribute(0, 4), absl::OkStatus());
    for (const uint32_t round : {4, 5, 6}) {
      ASSERT_EQ(run.Contribute(1, round), absl::OkStatus());
      run.Apply(round, {{.group = 1}});
      run.rank(1).Adopt(round, /*included=*/true);
    }
    ASSERT_EQ(run.rank(0).Adopt(6, /*included=*/false), 3U);
  });
}

TEST_P(DeviceContributionTest, ContinuesWithWhatWasKept) {
  Start();
  OnBoth([](CodedRun& run) {
    for (const uint32_t group : {0, 1}) ASSERT_EQ(run.Contribute(group, 1), absl::OkStatus());
    run.Apply(1, {{.group = 0}, {.group = 1}});
    const std::vector<float> kept = run.rank(0).WhatMayBeKept().left_out;
    run.Restart(1).exchange().SetCarried(kept);
    run.rank(1).Adopt(1, /*included=*/true);
  });
  OnBoth([](CodedRun& run) {
    for (const uint32_t group : {0, 1}) ASSERT_EQ(run.Contribute(group, 2), absl::OkStatus());
    run.Apply(2, {{.group = 0}, {.group = 1}});
    for (const uint32_t group : {0, 1}) run.rank(group).Adopt(2, /*included=*/true);
  });
}

TEST_P(DeviceContributionTest, RefusesValuesThatAreNotFiniteWithTheReasonOfTheHost) {
  Start();
  absl::Status refused[2];
  for (const CodedOn coded_on : {CodedOn::kHost, CodedOn::kDevice}) {
    CodingRank& rank = (coded_on == CodedOn::kHost ? *host_ : *device_).rank(0);
    // The change overflows.
    rank.values()[4200] = -std::numeric_limits<float>::max();
    rank.exchange().SetCarried(
        std::vector<float>(rank.values().size(), -std::numeric_limits<float>::max()));
    refused[static_cast<int>(coded_on)] = rank.Stage(1);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(refused[0])) << refused[0];
  EXPECT_EQ(refused[0], refused[1]);
}

INSTANTIATE_TEST_SUITE_P(Codecs, DeviceContributionTest,
                         ::testing::Values(v1::CODEC_BF16, v1::CODEC_INT8, v1::CODEC_E3M0,
                                           v1::CODEC_STAT2, v1::CODEC_TOPK),
                         [](const auto& info) {
                           return v1::Codec_Name(info.param).substr(sizeof("CODEC_") - 1);
                         });

}  // namespace
}  // namespace cadre::testing
