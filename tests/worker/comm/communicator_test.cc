// Collectives: right, bit for bit, for all sizes, on both transports, on parts of a mesh.
#include "worker/comm/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "base/random.h"
#include "tensor/layout.h"
#include "tensor/mesh.h"
#include "tests/worker/comm/ranks.h"

namespace cadre {
namespace {

constexpr RandomStream kTest = RandomStream::kTest;

// Multiples of 1/8 in [-1, 1]: sums of thousands are exact in any order.
float Exact(uint64_t seed, int rank, size_t i) {
  const uint64_t bits = RandomBits(seed, kTest, static_cast<uint64_t>(rank), i);
  return static_cast<float>(static_cast<int>(bits % 17) - 8) / 8.0F;
}

std::vector<float> ExactData(uint64_t seed, int rank, size_t n) {
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i) data[i] = Exact(seed, rank, i);
  return data;
}

std::vector<float> ExactSum(uint64_t seed, const std::vector<int>& ranks, size_t n) {
  std::vector<float> sum(n, 0.0F);
  for (const int rank : ranks) {
    for (size_t i = 0; i < n; ++i) sum[i] += Exact(seed, rank, i);
  }
  return sum;
}

std::vector<int> AllRanks(int ranks) { return Mesh({{"data", ranks}}).Peers(0, {"data"}); }

// Offsets that cut n into p pieces of random sizes, many of them empty.
std::vector<int64_t> RandomOffsets(uint64_t seed, int64_t n, int pieces) {
  std::vector<int64_t> offsets = {0};
  for (int i = 1; i < pieces; ++i) {
    const uint64_t bits = RandomBits(seed, kTest, 77, static_cast<uint64_t>(i));
    offsets.push_back(bits % 4 == 0 ? offsets.back() : static_cast<int64_t>(bits >> 8) % (n + 1));
  }
  offsets.push_back(n);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

class CollectiveTest : public ::testing::TestWithParam<std::tuple<Wire, int>> {
 protected:
  CollectiveTest()
      : ranks_(std::get<1>(GetParam())), group_(MakeTransports(std::get<0>(GetParam()), ranks_)) {}

  // Runs `body` on every rank with a communicator over all.
  void OnAll(const std::function<void(Communicator&)>& body) {
    OnRanks(ranks_, [&](int rank) {
      Communicator all(*group_[static_cast<size_t>(rank)], AllRanks(ranks_));
      body(all);
    });
  }

  const int ranks_;
  const Transports group_;
};

TEST_P(CollectiveTest, AllReduceIsExactForAnyLength) {
  for (const size_t n : {0, 1, 2, 3, 5, 7, 8, 64, 1000, 100'003}) {
    const std::vector<float> expected = ExactSum(n, AllRanks(ranks_), n);
    OnAll([&](Communicator& all) {
      std::vector<float> data = ExactData(n, all.index(), n);
      ASSERT_TRUE(all.AllReduceSum(std::span(data)).ok());
      ASSERT_EQ(data, expected) << n;
    });
  }
}

TEST_P(CollectiveTest, ReduceScatterAndAllGatherTakeUnevenPieces) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto n = static_cast<int64_t>(RandomBits(seed, kTest, 5, 0) % 400);
    const auto offsets = RandomOffsets(seed, n, ranks_);
    const auto expected = ExactSum(seed, AllRanks(ranks_), static_cast<size_t>(n));
    OnAll([&](Communicator& all) {
      std::vector<float> data = ExactData(seed, all.index(), static_cast<size_t>(n));
      const auto i = static_cast<size_t>(all.index());
      const int64_t own = offsets[i + 1] - offsets[i];
      ASSERT_TRUE(all.ReduceScatterSum(data, offsets).ok());
      for (int64_t k = offsets[i]; k < offsets[i + 1]; ++k) {
        ASSERT_EQ(data[static_cast<size_t>(k)], expected[static_cast<size_t>(k)]);
      }
      const bool alone = all.size() == 1;
      EXPECT_EQ(all.bytes_sent(), alone ? 0 : static_cast<uint64_t>(n - own) * 4);
      // What is not the own piece must not matter.
      for (int64_t k = 0; k < n; ++k) {
        if (k < offsets[i] || k >= offsets[i + 1]) data[static_cast<size_t>(k)] = -1e30F;
      }
      const uint64_t before = all.bytes_sent();
      ASSERT_TRUE(all.AllGather(data, offsets).ok());
      EXPECT_EQ(data, expected);
      const size_t next = (i + 1) % static_cast<size_t>(all.size());
      const int64_t kept = offsets[next + 1] - offsets[next];
      EXPECT_EQ(all.bytes_sent() - before, alone ? 0 : static_cast<uint64_t>(n - kept) * 4);
    });
  }
}

TEST_P(CollectiveTest, AllGatherBytes) {
  const auto offsets = RandomOffsets(3, 1001, ranks_);
  const auto value = [](int64_t k) { return static_cast<std::byte>(k * 7 + 1); };
  OnAll([&](Communicator& all) {
    std::vector<std::byte> data(1001, std::byte{0});
    const auto i = static_cast<size_t>(all.index());
    for (int64_t k = offsets[i]; k < offsets[i + 1]; ++k) data[static_cast<size_t>(k)] = value(k);
    ASSERT_TRUE(all.AllGatherBytes(data, offsets).ok());
    for (int64_t k = 0; k < 1001; ++k) ASSERT_EQ(data[static_cast<size_t>(k)], value(k)) << k;
  });
}

TEST_P(CollectiveTest, BroadcastFromEveryRoot) {
  for (int root = 0; root < ranks_; ++root) {
    for (const size_t n : {0, 1, 17, 70'000}) {
      OnAll([&](Communicator& all) {
        const bool mine = all.index() == root;
        std::vector<std::byte> data(n, mine ? std::byte{0x5a} : std::byte{0});
        ASSERT_TRUE(all.Broadcast(data, root).ok());
        EXPECT_EQ(data, std::vector<std::byte>(n, std::byte{0x5a}));
      });
    }
  }
}

TEST_P(CollectiveTest, SmallSumsAddInIndexOrder) {
  // 1e16 + 1 + 1 ... depends on the order: in index order every 1 after 1e16 is lost.
  double expected = 1e16;
  for (int i = 1; i < ranks_; ++i) expected += 1.0;
  OnAll([&](Communicator& all) {
    std::vector<double> doubles = {all.index() == 0 ? 1e16 : 1.0, 0.5};
    std::vector<uint64_t> counts = {1ULL << 60, static_cast<uint64_t>(all.index())};
    ASSERT_TRUE(all.AllReduceSum(std::span(doubles)).ok());
    ASSERT_TRUE(all.AllReduceSum(std::span(counts)).ok());
    const auto p = static_cast<uint64_t>(all.size());
    EXPECT_EQ(doubles, (std::vector<double>{expected, 0.5 * static_cast<double>(p)}));
    EXPECT_EQ(counts, (std::vector<uint64_t>{p << 60, p * (p - 1) / 2}));
  });
}

// Values whose sum depends on the order, so that equal bits prove an equal order.
TEST_P(CollectiveTest, SumsHaveEqualBitsEverywhereAndInTheDocumentedOrder) {
  constexpr size_t kN = 4099;
  const auto value = [](int rank, size_t i) {
    return RandomNormal(9, kTest, static_cast<uint64_t>(rank), i) * (i % 3 == 0 ? 1e6F : 1.0F);
  };
  std::vector<float> expected(kN);
  for (int piece = 0; piece < ranks_; ++piece) {
    for (int64_t i = PartBegin(kN, piece, ranks_); i < PartBegin(kN, piece + 1, ranks_); ++i) {
      float sum = value((piece + 1) % ranks_, static_cast<size_t>(i));
      for (int step = 2; step <= ranks_; ++step) {
        sum += value((piece + step) % ranks_, static_cast<size_t>(i));
      }
      expected[static_cast<size_t>(i)] = sum;
    }
  }
  OnAll([&](Communicator& all) {
    std::vector<float> data(kN);
    for (size_t i = 0; i < kN; ++i) data[i] = value(all.index(), i);
    ASSERT_TRUE(all.AllReduceSum(std::span(data)).ok());
    EXPECT_EQ(std::memcmp(data.data(), expected.data(), kN * sizeof(float)), 0);
  });
}

TEST_P(CollectiveTest, NobodyLeavesABarrierBeforeAllAreThere) {
  std::atomic<int> arrived{0};
  OnAll([&](Communicator& all) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      ASSERT_TRUE(all.Barrier().ok());
      ASSERT_GE(arrived.load(), round * all.size());
    }
  });
}

TEST_P(CollectiveTest, RefusesOffsetsThatCannotBeRight) {
  OnAll([&](Communicator& all) {
    std::vector<float> data(10);
    std::vector<int64_t> offsets(static_cast<size_t>(all.size()) + 1, 0);
    offsets.back() = 11;
    EXPECT_EQ(all.AllGather(data, offsets).code(), absl::StatusCode::kInvalidArgument);
    offsets.back() = 10;
    offsets.front() = -1;
    EXPECT_EQ(all.ReduceScatterSum(data, offsets).code(), absl::StatusCode::kInvalidArgument);
    offsets.push_back(10);
    EXPECT_EQ(all.ReduceScatterSum(data, offsets).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(all.Broadcast({}, all.size()).code(), absl::StatusCode::kInvalidArgument);
    // The group lives on.
    EXPECT_TRUE(all.Barrier().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Wires, CollectiveTest,
                         ::testing::Combine(::testing::Values(Wire::kThreads, Wire::kTcp),
                                            ::testing::Values(1, 2, 3, 4, 5, 8)),
                         [](const auto& info) {
                           return WireName(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

// A random program of collectives over the axes of a mesh: every rank derives the same program from
// the seed, and knows what must come out.
class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const Mesh& mesh) : seed_(seed), mesh_(mesh) {}

  void Run(Transport& transport) const {
    const int rank = transport.rank();
    Communicator all(transport, mesh_.Peers(rank, {"data", "model"}));
    Communicator data(transport, mesh_.Peers(rank, {"data"}));
    Communicator model(transport, mesh_.Peers(rank, {"model"}));
    Communicator* const communicators[] = {&all, &data, &model};
    for (uint64_t op = 0; op < 12; ++op) Step(*communicators[Draw(op, 0) % 3], op);
  }

 private:
  uint64_t Draw(uint64_t op, uint64_t what) const {
    return RandomBits(seed_, kTest, 1000 + op, what);
  }

  void Step(Communicator& among, uint64_t op) const {
    const size_t n = Draw(op, 1) % (Draw(op, 2) % 5 == 0 ? 50'000 : 60);
    const uint64_t data_seed = seed_ * 1000 + op;
    const int rank = among.members()[static_cast<size_t>(among.index())];
    std::vector<float> data = ExactData(data_seed, rank, n);
    const std::vector<float> sum = ExactSum(data_seed, among.members(), n);
    switch (Draw(op, 3) % 4) {
      case 0:
        ASSERT_TRUE(among.AllReduceSum(std::span(data)).ok());
        ASSERT_EQ(data, sum);
        break;
      case 1: {
        const auto offsets = RandomOffsets(data_seed, static_cast<int64_t>(n), among.size());
        ASSERT_TRUE(among.ReduceScatterSum(data, offsets).ok());
        ASSERT_TRUE(among.AllGather(data, offsets).ok());
        ASSERT_EQ(data, sum);
        break;
      }
      case 2: {
        const int root = static_cast<int>(Draw(op, 4) % static_cast<uint64_t>(among.size()));
        ASSERT_TRUE(among.Broadcast(std::as_writable_bytes(std::span(data)), root).ok());
        ASSERT_EQ(data, ExactData(data_seed, among.members()[static_cast<size_t>(root)], n));
        break;
      }
      default:
        ASSERT_TRUE(among.Barrier().ok());
    }
  }

  const uint64_t seed_;
  const Mesh& mesh_;
};

class RandomProgramTest : public ::testing::TestWithParam<Wire> {};

TEST_P(RandomProgramTest, OnThePartsOfMeshes) {
  uint64_t seed = 0;
  for (const auto& [rows, columns] : {std::pair(2, 3), std::pair(4, 2), std::pair(1, 3)}) {
    const Mesh mesh({{"data", rows}, {"model", columns}});
    const Transports group = MakeTransports(GetParam(), mesh.ranks());
    for (int program = 0; program < 80; ++program, ++seed) {
      SCOPED_TRACE(seed);
      OnRanks(mesh.ranks(),
              [&](int rank) { RandomProgram(seed, mesh).Run(*group[static_cast<size_t>(rank)]); });
      ASSERT_FALSE(HasFailure()) << "seed " << seed << " on " << mesh.ToString();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, RandomProgramTest, ::testing::Values(Wire::kThreads, Wire::kTcp),
                         [](const auto& info) { return WireName(info.param); });

// Ranks that disagree about the next collective find out instead of mixing their data.
TEST(CommunicatorTest, DifferentCollectivesAreAnError) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(30));
  std::vector<absl::Status> statuses(2);
  OnRanks(2, [&](int rank) {
    Communicator all(*group[static_cast<size_t>(rank)], {0, 1});
    std::vector<float> data(2);
    const std::vector<int64_t> offsets = {0, 1, 2};
    statuses[static_cast<size_t>(rank)] =
        rank == 0 ? all.ReduceScatterSum(data, offsets) : all.AllGather(data, offsets);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(status.code() == absl::StatusCode::kInternal ||
                status.code() == absl::StatusCode::kUnavailable)
        << status;
  }
  EXPECT_TRUE(statuses[0].code() == absl::StatusCode::kInternal ||
              statuses[1].code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace cadre
