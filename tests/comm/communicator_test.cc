// Tests collectives of all sizes and types, by every algorithm, over every kind of link.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <tuple>

#include "base/random.h"
#include "comm/mesh_communicators.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/exact_data.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr RandomStream kTest = RandomStream::kTest;
constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling};

class CollectiveTest : public ::testing::TestWithParam<std::tuple<Wire, int>> {
 protected:
  CollectiveTest()
      : ranks_(std::get<1>(GetParam())), group_(MakeTransports(std::get<0>(GetParam()), ranks_)) {}

  // Runs `body` on every rank with a communicator over all.
  void OnAll(const std::function<void(Communicator&)>& body) {
    OnRanks(ranks_, [&](int rank) {
      Communicator all(*group_[rank], AllRanks(ranks_));
      body(all);
    });
  }

  void Check(const std::function<void(const DeviceRank&)>& check) {
    OnRanks(ranks_, [&](int rank) {
      const auto kernels = MakeReferenceBackend();
      check({*kernels, *group_[rank], *group_[rank]});
    });
  }

  const int ranks_;
  const Transports group_;
};

TEST_P(CollectiveTest, AllReduce) { Check(CheckAllReduces); }
TEST_P(CollectiveTest, ReduceScatterAndAllGather) { Check(CheckIntervals); }
TEST_P(CollectiveTest, AllToAllAndBroadcast) { Check(CheckAllToAllAndBroadcast); }

TEST_P(CollectiveTest, RingBytes) {
  OnAll([&](Communicator& all) {
    std::vector<Interval> intervals;
    int64_t n = 0;
    for (int i = 0; i < ranks_; ++i) {
      intervals.push_back({n, n + 10 * i});
      n += 10 * i;
    }
    std::vector<float> data(n);
    const auto bytes = std::as_writable_bytes(std::span(data));
    ASSERT_TRUE(all.ReduceScatter(Algorithm::kRing, DType::kFloat32, bytes, intervals).ok());
    const auto bytes_without = [&](int member) {
      const uint64_t elements = n - intervals[member % ranks_].size();
      return ranks_ == 1 ? 0 : elements * sizeof(float);
    };
    const uint64_t reduced = all.bytes_sent();
    EXPECT_EQ(reduced, bytes_without(all.index()));
    ASSERT_TRUE(all.AllGather(Algorithm::kRing, DType::kFloat32, bytes, intervals).ok());
    EXPECT_EQ(all.bytes_sent() - reduced, bytes_without(all.index() + 1));
  });
}

TEST_P(CollectiveTest, AllGatherByOffsets) {
  std::vector<int64_t> offsets;
  for (int i = 0; i <= ranks_; ++i) offsets.push_back(PartBegin(1001, i, ranks_));
  OnAll([&](Communicator& all) {
    Bytes bytes(1001);
    std::vector<float> floats(1001);
    for (int64_t at = offsets[all.index()]; at < offsets[all.index() + 1]; ++at) {
      bytes[at] = std::byte(at);
      floats[at] = at;
    }
    ASSERT_TRUE(all.AllGatherBytes(bytes, offsets).ok());
    ASSERT_TRUE(all.AllGather(floats, offsets).ok());
    for (int at = 0; at < 1001; ++at) {
      ASSERT_EQ(bytes[at], std::byte(at));
      ASSERT_EQ(floats[at], at);
    }
  });
}

TEST_P(CollectiveTest, FewNumbers) {
  OnAll([&](Communicator& all) {
    const uint64_t index = all.index();
    std::vector<double> doubles = {1.0 * all.index(), 0.5};
    std::vector<uint64_t> counts = {1ULL << 60, index};
    ASSERT_TRUE(all.AllReduceSum(std::span(doubles)).ok());
    ASSERT_TRUE(all.AllReduceSum(std::span(counts)).ok());
    const uint64_t p = all.size();
    const uint64_t indices = p * (p - 1) / 2;
    EXPECT_EQ(doubles, (std::vector<double>{1.0 * indices, 0.5 * p}));
    EXPECT_EQ(counts, (std::vector<uint64_t>{p << 60, indices}));
  });
}

// Values whose sum depends on the order, so that equal bits prove an equal order.
std::vector<float> OrderSensitive(uint64_t rank) {
  std::vector<float> values(4099);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = RandomNormal(9, kTest, rank, i) * (i % 3 == 0 ? 1e6F : 1.0F);
  }
  return values;
}

TEST_P(CollectiveTest, SumsAreReproducible) {
  for (const Algorithm algorithm : kAll) {
    std::vector<float> first;
    for (uint64_t run = 0; run < 5; ++run) {
      std::vector<std::vector<float>> results(ranks_);
      OnAll([&](Communicator& all) {
        std::vector<float>& data = results[all.index()];
        data = OrderSensitive(all.index());
        // The order of arrival must not matter.
        const int64_t delay = RandomBits(4, kTest, run, all.index()) % 500;
        absl::SleepFor(absl::Microseconds(delay));
        ASSERT_TRUE(all.AllReduceSum(std::span(data), algorithm).ok());
      });
      if (run == 0) first = results[0];
      for (const std::vector<float>& data : results) {
        ASSERT_EQ(data, first) << AlgorithmName(algorithm) << ", run " << run;
      }
    }
  }
}

// AllReduceSum adds in the order of the ring.
TEST_P(CollectiveTest, RingOrderOfAdditions) {
  std::vector<std::vector<float>> addends;
  for (int rank = 0; rank < ranks_; ++rank) addends.push_back(OrderSensitive(rank));
  std::vector<float> expected(addends[0].size());
  const std::vector<Interval> intervals = EqualIntervals(std::ssize(expected), ranks_);
  for (int k = 0; k < ranks_; ++k) {
    for (int64_t i = intervals[k].begin; i < intervals[k].end; ++i) {
      expected[i] = addends[(k + 1) % ranks_][i];
      for (int step = 2; step <= ranks_; ++step) expected[i] += addends[(k + step) % ranks_][i];
    }
  }
  OnAll([&](Communicator& all) {
    std::vector<float> data = addends[all.index()];
    ASSERT_TRUE(all.AllReduceSum(std::span(data)).ok());
    EXPECT_EQ(data, expected);
  });
}

TEST_P(CollectiveTest, BarrierWaitsForAllMembers) {
  std::atomic<int> arrived{0};
  OnAll([&](Communicator& all) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ASSERT_TRUE(all.Barrier().ok());
      ASSERT_GE(arrived.load(), round * all.size());
    }
  });
}

TEST_P(CollectiveTest, RejectsInvalidArguments) {
  OnAll([&](Communicator& all) {
    const auto expect_invalid = [](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    };
    std::vector<float> data(10);
    const auto bytes = std::as_writable_bytes(std::span(data));
    std::vector<int64_t> offsets(all.size() + 1, 0);
    offsets.back() = 11;
    expect_invalid(all.AllGather(data, offsets));
    offsets.back() = 10;
    offsets.front() = -1;
    expect_invalid(all.AllGather(data, offsets));
    offsets.front() = 0;
    offsets.push_back(10);
    expect_invalid(all.AllGather(data, offsets));
    expect_invalid(all.AllGather(data, {}));
    expect_invalid(all.Broadcast({}, all.size()));
    expect_invalid(all.Broadcast({}, -1));
    expect_invalid(all.AllReduce(Algorithm::kNone, DType::kFloat32, bytes));
    expect_invalid(all.AllReduce(Algorithm::kSingle, DType::kFloat32, bytes));
    expect_invalid(all.AllReduce(Algorithm::kRing, DType::kBytes, bytes));
    expect_invalid(all.AllReduce(Algorithm::kRing, DType::kFloat32, bytes.first(7)));
    expect_invalid(all.AllReduce(Algorithm::kRing, DType::kFloat32, bytes.subspan(2, 8)));
    std::vector<Interval> intervals(all.size(), {4, 5});
    if (all.size() > 1) {
      expect_invalid(all.AllGather(Algorithm::kRing, DType::kFloat32, bytes, intervals));
    }
    intervals.back() = {5, 4};
    expect_invalid(all.AllGather(Algorithm::kRing, DType::kFloat32, bytes, intervals));
    intervals.assign(intervals.size(), {0, 0});
    expect_invalid(all.AllGather(Algorithm::kSingle, DType::kFloat32, bytes, intervals));
    expect_invalid(all.ReduceScatter(Algorithm::kRing, DType::kBytes, bytes, intervals));
    std::vector<std::span<const std::byte>> send(all.size() + 1);
    std::vector<std::span<std::byte>> receive(all.size());
    expect_invalid(all.AllToAll(send, receive));
    send.pop_back();
    send[all.index()] = bytes.first(1);
    expect_invalid(all.AllToAll(send, receive));
    // None of these fails the group.
    EXPECT_TRUE(all.Barrier().ok());
  });
}

// Each shape twice, from the cache of schedules.
TEST_P(CollectiveTest, ManyShapes) {
  OnAll([&](Communicator& all) {
    for (int round = 0; round < 2; ++round) {
      for (size_t n = 0; n < 150; ++n) {
        Bytes data = ExactData(DType::kFloat32, n, all.index(), n);
        ASSERT_TRUE(all.AllReduce(kAll[n % 4], DType::kFloat32, data).ok());
        ASSERT_EQ(data, ExactSum(DType::kFloat32, n, all.members(), n));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, CollectiveTest,
                         ::testing::Combine(::testing::Values(Wire::kThreads, Wire::kSharedMemory,
                                                              Wire::kTcp),
                                            ::testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& info) {
                           return WireName(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

// Each rank has two threads, each with its own channel and order of collectives.
TEST(MeshCommunicatorsTest, ChannelsAreIndependent) {
  const Mesh mesh({{"data", 2}, {"model", 2}});
  const Transports group = MakeThreadTransports(mesh.ranks(), absl::Seconds(60));
  std::vector<std::unique_ptr<MeshCommunicators>> comms;
  for (const auto& transport : group) {
    comms.push_back(std::make_unique<MeshCommunicators>(*transport, mesh));
  }
  OnRanks(2 * mesh.ranks(), [&](int thread) {
    const int rank = thread / 2;
    const int channel = thread % 2;
    MeshCommunicators& own = *comms[rank];
    for (size_t round = 0; round < 100; ++round) {
      Communicator& peers = channel == 0 ? own.Over({"data"}, channel) : own.All(channel);
      Bytes data = ExactData(DType::kFloat32, round, rank, 1 + round * 7);
      ASSERT_TRUE(peers.AllReduce(kAll[round % 4], DType::kFloat32, data).ok());
      ASSERT_EQ(data, ExactSum(DType::kFloat32, round, peers.members(), 1 + round * 7));
      EXPECT_GT(own.bytes_sent(), 0U);
    }
  });
  MeshCommunicators& first = *comms[0];
  EXPECT_NE(&first.All(0), &first.All(1));
  EXPECT_EQ(&first.All(1), &first.Among({0, 1, 2, 3}, 1));
  EXPECT_EQ(first.bytes_sent(), first.Over({"data"}, 0).bytes_sent() + first.All(1).bytes_sent());
}

}  // namespace
}  // namespace cadre
