// Collectives: right, bit for bit, for all sizes and types, by every algorithm, over every wire.
#include "worker/comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <tuple>

#include "base/random.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tests/worker/comm/exact_data.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr RandomStream kTest = RandomStream::kTest;
constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kUInt64,
                              DType::kFloat64};
constexpr Algorithm kFlat[] = {Algorithm::kRing, Algorithm::kButterfly,
                               Algorithm::kHalvingDoubling};
constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling,
                              Algorithm::kHierarchical};

std::vector<int> AllRanks(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Intervals of random sizes, many of them empty, in any order, with gaps between some.
std::vector<Interval> RandomPieces(uint64_t seed, int64_t elements, int members) {
  std::vector<int64_t> borders = {0, elements};
  const auto draw = [&](int i) { return RandomBits(seed, kTest, 77, static_cast<uint64_t>(i)); };
  const int intervals = draw(0) % 2 == 0 ? members : members + 3;
  for (int i = 1; i < intervals; ++i) {
    const bool empty = draw(i) % 4 == 0;
    borders.push_back(empty ? borders.back() : static_cast<int64_t>(draw(i) >> 8) % (elements + 1));
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Interval> all;
  for (size_t i = 1; i < borders.size(); ++i) all.push_back({borders[i - 1], borders[i]});
  const auto turn = static_cast<std::ptrdiff_t>(draw(99) % all.size());
  std::rotate(all.begin(), all.begin() + turn, all.end());
  all.resize(static_cast<size_t>(members));
  return all;
}

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

  const int ranks_;
  const Transports group_;
};

TEST_P(CollectiveTest, AllReduce) {
  const std::vector<int> all_ranks = AllRanks(ranks_);
  OnAll([&](Communicator& all) {
    for (const size_t n : {0, 1, 2, 3, 5, 7, 8, 64, 1000, 40'003}) {
      for (const DType type : kNumbers) {
        const Bytes expected =
            ranks_ == 1 ? ExactData(type, n, 0, n) : ExactSum(type, n, all_ranks, n);
        for (const Algorithm algorithm : kAll) {
          Bytes data = ExactData(type, n, all.index(), n);
          const absl::Status status = all.AllReduce(algorithm, type, data);
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_TRUE(data == expected)
              << n << " " << DTypeName(type) << " by " << AlgorithmName(algorithm);
        }
      }
    }
  });
}

TEST_P(CollectiveTest, ReduceScatterAndAllGather) {
  const std::vector<int> all_ranks = AllRanks(ranks_);
  OnAll([&](Communicator& all) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const Algorithm algorithm = kFlat[seed % 3];
      const auto n = static_cast<int64_t>(RandomBits(seed, kTest, 5, 0) % 400);
      const std::vector<Interval> intervals = RandomPieces(seed, n, ranks_);
      const Interval own = intervals[all.index()];
      constexpr DType kType = DType::kFloat32;
      Bytes data = ExactData(kType, seed, all.index(), static_cast<size_t>(n));
      const Bytes expected = ExactSum(kType, seed, all_ranks, static_cast<size_t>(n));
      ASSERT_TRUE(all.ReduceScatter(algorithm, kType, data, intervals).ok());
      // What is not the own interval must not matter.
      std::fill_n(data.begin(), 4 * own.begin, std::byte{0x55});
      std::fill(data.begin() + 4 * own.end, data.end(), std::byte{0x55});
      ASSERT_TRUE(all.AllGather(algorithm, kType, data, intervals).ok());
      for (const Interval& interval : intervals) {
        ASSERT_TRUE(std::equal(data.begin() + 4 * interval.begin, data.begin() + 4 * interval.end,
                               expected.begin() + 4 * interval.begin))
            << seed;
      }
    }
  });
}

TEST_P(CollectiveTest, RingBytes) {
  OnAll([&](Communicator& all) {
    const std::vector<int64_t> offsets = [&] {
      std::vector<int64_t> uneven = {0};
      for (int i = 0; i < ranks_; ++i) uneven.push_back(uneven.back() + 10 * i);
      return uneven;
    }();
    const auto i = static_cast<size_t>(all.index());
    const size_t next = (i + 1) % static_cast<size_t>(ranks_);
    const auto n = offsets.back();
    std::vector<float> data(static_cast<size_t>(n));
    ASSERT_TRUE(all.ReduceScatterSum(data, offsets).ok());
    const int64_t own = offsets[i + 1] - offsets[i];
    EXPECT_EQ(all.bytes_sent(), ranks_ == 1 ? 0 : static_cast<uint64_t>(4 * (n - own)));
    const uint64_t before = all.bytes_sent();
    ASSERT_TRUE(all.AllGather(data, offsets).ok());
    const int64_t kept = offsets[next + 1] - offsets[next];
    EXPECT_EQ(all.bytes_sent() - before, ranks_ == 1 ? 0 : static_cast<uint64_t>(4 * (n - kept)));
    EXPECT_EQ(all.messages_sent(), static_cast<uint64_t>(2 * (ranks_ - 1)));
  });
}

TEST_P(CollectiveTest, AllGatherBytes) {
  std::vector<int64_t> offsets;
  for (int i = 0; i <= ranks_; ++i) offsets.push_back(PartBegin(1001, i, ranks_));
  OnAll([&](Communicator& all) {
    Bytes data(1001);
    const auto i = static_cast<size_t>(all.index());
    std::fill(data.begin() + offsets[i], data.begin() + offsets[i + 1], static_cast<std::byte>(i));
    ASSERT_TRUE(all.AllGatherBytes(data, offsets).ok());
    for (size_t k = 0; k < static_cast<size_t>(ranks_); ++k) {
      for (int64_t at = offsets[k]; at < offsets[k + 1]; ++at) {
        ASSERT_EQ(data[at], static_cast<std::byte>(k));
      }
    }
  });
}

TEST_P(CollectiveTest, BroadcastFromEveryRoot) {
  OnAll([&](Communicator& all) {
    for (int root = 0; root < ranks_; ++root) {
      for (const size_t n : {0, 1, 17, 70'000}) {
        const bool mine = all.index() == root;
        Bytes data(n, mine ? std::byte{0x5a} : std::byte{0});
        ASSERT_TRUE(all.Broadcast(data, root).ok());
        EXPECT_EQ(data, Bytes(n, std::byte{0x5a}));
      }
    }
  });
}

TEST_P(CollectiveTest, FewNumbers) {
  OnAll([&](Communicator& all) {
    std::vector<double> doubles = {static_cast<double>(all.index()), 0.5};
    std::vector<uint64_t> counts = {1ULL << 60, static_cast<uint64_t>(all.index())};
    ASSERT_TRUE(all.AllReduceSum(std::span(doubles)).ok());
    ASSERT_TRUE(all.AllReduceSum(std::span(counts)).ok());
    const auto p = static_cast<uint64_t>(all.size());
    const uint64_t indices = p * (p - 1) / 2;
    EXPECT_EQ(doubles,
              (std::vector<double>{static_cast<double>(indices), 0.5 * static_cast<double>(p)}));
    EXPECT_EQ(counts, (std::vector<uint64_t>{p << 60, indices}));
  });
}

// Values whose sum depends on the order, so that equal bits prove an equal order.
float Unfriendly(int rank, size_t i) {
  return RandomNormal(9, kTest, static_cast<uint64_t>(rank), i) * (i % 3 == 0 ? 1e6F : 1.0F);
}

TEST_P(CollectiveTest, RingOrderOfAdditions) {
  constexpr size_t kN = 4099;
  std::vector<float> expected(kN);
  for (int interval = 0; interval < ranks_; ++interval) {
    for (int64_t i = PartBegin(kN, interval, ranks_); i < PartBegin(kN, interval + 1, ranks_);
         ++i) {
      float sum = Unfriendly((interval + 1) % ranks_, static_cast<size_t>(i));
      for (int step = 2; step <= ranks_; ++step) {
        sum += Unfriendly((interval + step) % ranks_, static_cast<size_t>(i));
      }
      expected[i] = sum;
    }
  }
  OnAll([&](Communicator& all) {
    std::vector<float> data(kN);
    for (size_t i = 0; i < kN; ++i) data[i] = Unfriendly(all.index(), i);
    ASSERT_TRUE(all.AllReduceSum(std::span(data)).ok());
    EXPECT_EQ(std::memcmp(data.data(), expected.data(), kN * sizeof(float)), 0);
  });
}

TEST_P(CollectiveTest, SumsAreReproducible) {
  constexpr size_t kN = 4099;
  for (const Algorithm algorithm : kAll) {
    std::vector<float> first;
    for (int run = 0; run < 5; ++run) {
      std::vector<std::vector<float>> results(static_cast<size_t>(ranks_), std::vector<float>(kN));
      OnAll([&](Communicator& all) {
        std::vector<float>& data = results[all.index()];
        for (size_t i = 0; i < kN; ++i) data[i] = Unfriendly(all.index(), i);
        // Whoever is late must not matter.
        absl::SleepFor(absl::Microseconds(static_cast<int64_t>(
            RandomBits(4, kTest, static_cast<uint64_t>(run), static_cast<uint64_t>(all.index())) %
            500)));
        ASSERT_TRUE(all.AllReduceSum(std::span(data), algorithm).ok());
      });
      if (run == 0) first = results[0];
      for (const std::vector<float>& data : results) {
        ASSERT_EQ(std::memcmp(data.data(), first.data(), kN * sizeof(float)), 0)
            << AlgorithmName(algorithm) << ", run " << run;
      }
    }
  }
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
    const auto refused = [](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    };
    std::vector<float> data(10);
    const auto bytes = std::as_writable_bytes(std::span(data));
    std::vector<int64_t> offsets(static_cast<size_t>(all.size()) + 1, 0);
    offsets.back() = 11;
    refused(all.AllGather(data, offsets));
    offsets.back() = 10;
    offsets.front() = -1;
    refused(all.ReduceScatterSum(data, offsets));
    offsets.push_back(10);
    refused(all.ReduceScatterSum(data, offsets));
    refused(all.ReduceScatterSum(data, {}));
    refused(all.Broadcast({}, all.size()));
    refused(all.Broadcast({}, -1));
    refused(all.AllReduce(Algorithm::kNone, DType::kFloat32, bytes));
    refused(all.AllReduce(Algorithm::kOnly, DType::kFloat32, bytes));
    refused(all.AllReduce(Algorithm::kRing, DType::kBytes, bytes));
    refused(all.AllReduce(Algorithm::kRing, DType::kFloat32, bytes.first(7)));
    refused(all.AllReduce(Algorithm::kRing, DType::kFloat32, bytes.subspan(2, 8)));
    std::vector<Interval> intervals(static_cast<size_t>(all.size()), {4, 5});
    if (all.size() > 1) refused(all.AllGather(Algorithm::kRing, DType::kFloat32, bytes, intervals));
    intervals.back() = {5, 4};
    refused(all.AllGather(Algorithm::kRing, DType::kFloat32, bytes, intervals));
    intervals.assign(intervals.size(), {0, 0});
    refused(all.AllGather(Algorithm::kHierarchical, DType::kFloat32, bytes, intervals));
    refused(all.ReduceScatter(Algorithm::kRing, DType::kBytes, bytes, intervals));
    // The group lives on.
    EXPECT_TRUE(all.Barrier().ok());
  });
}

// More shapes than are remembered, each twice.
TEST_P(CollectiveTest, ManyShapes) {
  const std::vector<int> all_ranks = AllRanks(ranks_);
  OnAll([&](Communicator& all) {
    for (int round = 0; round < 2; ++round) {
      for (size_t n = 0; n < 150; ++n) {
        Bytes data = ExactData(DType::kFloat32, n, all.index(), n);
        ASSERT_TRUE(all.AllReduce(kFlat[n % 3], DType::kFloat32, data).ok());
        ASSERT_EQ(data, ExactSum(DType::kFloat32, n, all_ranks, n));
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

// Two threads of each rank, each with its own channel and order of collectives.
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
    MeshCommunicators& mine = *comms[rank];
    for (size_t round = 0; round < 100; ++round) {
      Communicator& peers = channel == 0 ? mine.Over({"data"}, channel) : mine.All(channel);
      Bytes data = ExactData(DType::kFloat32, round, rank, 1 + round * 7);
      ASSERT_TRUE(peers.AllReduce(kFlat[round % 3], DType::kFloat32, data).ok());
      ASSERT_EQ(data, ExactSum(DType::kFloat32, round, peers.members(), 1 + round * 7));
      EXPECT_GT(mine.bytes_sent(), 0U);
    }
  });
  MeshCommunicators& first = *comms[0];
  EXPECT_NE(&first.All(0), &first.All(1));
  EXPECT_EQ(&first.All(1), &first.Among({0, 1, 2, 3}, 1));
  EXPECT_EQ(first.bytes_sent(), first.Over({"data"}, 0).bytes_sent() + first.All(1).bytes_sent());
}

}  // namespace
}  // namespace cadre
