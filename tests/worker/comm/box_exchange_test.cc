// Moves carried out between threads, over both transports.
#include "worker/comm/box_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "tests/worker/transport/ranks.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using Floats = std::vector<float>;

constexpr MoveCost kWords{.elements_per_message = 0};

// Small whole numbers, whose sums are exact in any order.
Floats Numbers(const Shape& shape, int salt) {
  Floats values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<int>(i) * 7 + salt * 13) % 31 - 15);
  }
  return values;
}

Floats Part(const Floats& whole, const Shape& shape, const Box& box) {
  Floats part(static_cast<size_t>(box.shape().elements()));
  CopyBox(whole, Box::Whole(shape), part, box, box);
  return part;
}

// Rank r holds its box of addend r of the sum, if it is one.
Floats Held(const Shape& shape, const Mesh& mesh, const Placement& at, int rank) {
  const int addend = mesh.Coordinate(rank, at.layout.partial_sum);
  return Part(Numbers(shape, addend), shape, at.box(rank));
}

Floats Whole(const Shape& shape, const Mesh& mesh, const Placement& at) {
  Floats sum(static_cast<size_t>(shape.elements()), 0.0F);
  for (int addend = 0; addend < mesh.Size(at.layout.partial_sum); ++addend) {
    const Floats values = Numbers(shape, addend);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

class BoxExchangeTest : public ::testing::TestWithParam<Wire> {
 protected:
  // Every rank gets its part of the tensor, and has sent what the plan says.
  void ExpectMoved(const Shape& shape, const Mesh& mesh, const Placement& from,
                   const Placement& to) {
    SCOPED_TRACE(shape.ToString() + " on " + mesh.ToString() + ": " + from.layout.ToString() +
                 " -> " + to.layout.ToString());
    const Transports group = MakeTransports(GetParam(), mesh.ranks());
    const Floats whole = Whole(shape, mesh, from);
    OnRanks(mesh.ranks(), [&](int rank) {
      MeshCommunicators comms(*group[rank], mesh);
      const auto kernels = MakeReferenceBackend();
      BoxExchange exchange(comms, *kernels);
      const Move move = PlanMove(shape, mesh, rank, from, to, kWords);
      ASSERT_FALSE(move.is_identity());
      const Floats have = Held(shape, mesh, from, rank);
      const Floats wanted = Part(whole, shape, to.box(rank));
      // Twice: buffers that were used before are as good as new ones.
      for (int again = 0; again < 2; ++again) {
        Floats made(wanted.size(), -77.0F);
        const absl::Status status = exchange.Run(move, have, made);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(made, wanted) << "rank " << rank;
      }
      EXPECT_EQ(comms.bytes_sent(), 2 * sizeof(float) * static_cast<size_t>(move.elements_sent()));
    });
  }

  void ExpectMoved(const Shape& shape, const Mesh& mesh, const Layout& from, const Layout& to) {
    ExpectMoved(shape, mesh, Placement::Of(shape, from, mesh), Placement::Of(shape, to, mesh));
  }
};

TEST_P(BoxExchangeTest, LayoutsOfOneAxis) {
  const Mesh mesh({{"a", 3}});
  const Layout sum{.partial_sum = {"a"}};
  for (const Shape& shape : {Shape{6, 9}, Shape{5, 7}, Shape{2, 2}, Shape{1, 40}}) {
    ExpectMoved(shape, mesh, Layout::Split(0, {"a"}), Layout::Replicated());
    ExpectMoved(shape, mesh, Layout::Split(1, {"a"}), Layout::Replicated());
    ExpectMoved(shape, mesh, Layout::Split(0, {"a"}), Layout::Split(1, {"a"}));
    ExpectMoved(shape, mesh, Layout::Split(1, {"a"}), Layout::Split(0, {"a"}));
    ExpectMoved(shape, mesh, sum, Layout::Split(1, {"a"}));
    ExpectMoved(shape, mesh, sum, Layout::Replicated());
    ExpectMoved(shape, mesh, Layout::Replicated(), Layout::Split(1, {"a"}));
  }
}

TEST_P(BoxExchangeTest, LayoutsOfTwoAxes) {
  const Mesh mesh({{"data", 2}, {"model", 3}});
  const Layout both{.split = {{"data"}, {}, {"model"}}};
  const Layout summed{.split = {{"data"}}, .partial_sum = {"model"}};
  for (const Shape& shape : {Shape{4, 2, 6}, Shape{5, 3, 4}, Shape{1, 1, 7}}) {
    ExpectMoved(shape, mesh, both, Layout::Split(0, {"data"}));
    ExpectMoved(shape, mesh, both, Layout::Replicated());
    ExpectMoved(shape, mesh, Layout::Split(0, {"data", "model"}), both);
    ExpectMoved(shape, mesh, summed, Layout::Split(0, {"data"}));
    ExpectMoved(shape, mesh, summed, Layout::Split(0, {"data", "model"}));
    ExpectMoved(shape, mesh, summed, Layout::Replicated());
  }
}

TEST_P(BoxExchangeTest, Halos) {
  const Mesh mesh({{"space", 3}});
  const Shape shape{2, 8, 5, 3};
  const Placement rows = Placement::Of(shape, Layout::Split(1, {"space"}), mesh);
  const Placement wide = {rows.layout, [&](int rank) {
                            Box box = rows.box(rank);
                            box.begin[1] = std::max<int64_t>(0, box.begin[1] - 2);
                            box.end[1] = std::min<int64_t>(8, box.end[1] + 1);
                            return box;
                          }};
  ExpectMoved(shape, mesh, rows, wide);
}

INSTANTIATE_TEST_SUITE_P(Wires, BoxExchangeTest, ::testing::Values(Wire::kThreads, Wire::kTcp),
                         [](const auto& info) { return WireName(info.param); });

// ((1e8 + 1) - 1e8) is 0 in fp32 and (1e8 - 1e8) + 1 is not: the order is the members'.
TEST(BoxExchangeSumTest, AddsInOrderOfMembers) {
  const Mesh mesh({{"a", 3}});
  const Shape shape{4, 3};
  const Placement from = Placement::Of(shape, {.partial_sum = {"a"}}, mesh);
  const Placement to = Placement::Of(shape, Layout::Split(0, {"a"}), mesh);
  const float addends[] = {1e8F, 1.0F, -1e8F};
  const float wanted = (addends[0] + addends[1]) + addends[2];
  const Transports group = MakeThreadTransports(3, absl::Seconds(30));
  OnRanks(3, [&](int rank) {
    MeshCommunicators comms(*group[rank], mesh);
    const auto kernels = MakeReferenceBackend();
    BoxExchange exchange(comms, *kernels);
    const Floats have(12, addends[rank]);
    const Move move = PlanMove(shape, mesh, rank, from, to);
    for (int again = 0; again < 50; ++again) {
      Floats made(static_cast<size_t>(move.steps.back().make.shape().elements()));
      ASSERT_TRUE(exchange.Run(move, have, made).ok());
      EXPECT_THAT(made, ::testing::Each(wanted));
    }
  });
}

// A gradient's overlaps are added, and what nobody has is zero.
TEST(BoxExchangeSumTest, OverlapsAndGaps) {
  const Mesh mesh({{"space", 2}});
  const Shape shape{1, 6};
  const Layout layout = Layout::Split(1, {"space"});
  const Placement have = {layout, [](int rank) {
                            return rank == 0 ? Box{{0, 0}, {1, 4}} : Box{{0, 2}, {1, 5}};
                          }};
  const Placement to = Placement::Of(shape, layout, mesh);
  const Transports group = MakeThreadTransports(2, absl::Seconds(30));
  const std::vector<Floats> held = {{1, 2, 3, 4}, {10, 20, 30}};
  const std::vector<Floats> wanted = {{1, 2, 13}, {24, 30, 0}};
  OnRanks(2, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    MeshCommunicators comms(*group[r], mesh);
    const auto kernels = MakeReferenceBackend();
    BoxExchange exchange(comms, *kernels);
    Floats made(3, -1.0F);
    ASSERT_TRUE(exchange.Run(PlanMove(shape, mesh, rank, have, to), held[r], made).ok());
    EXPECT_EQ(made, wanted[r]);
  });
}

TEST(BoxExchangeFailureTest, LostRankFailsMove) {
  const Mesh mesh({{"a", 3}});
  const Shape shape{300, 300};
  const Placement from = Placement::Of(shape, Layout::Split(0, {"a"}), mesh);
  const Placement to = Placement::Of(shape, Layout::Split(1, {"a"}), mesh);
  for (int victim = 0; victim < 3; ++victim) {
    // Longer than the test may take: it cannot be what ends the wait.
    Transports group = MakeThreadTransports(3, absl::Minutes(5));
    std::vector<absl::Status> statuses(3);
    OnRanks(3, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      MeshCommunicators comms(*group[r], mesh);
      const auto kernels = MakeReferenceBackend();
      BoxExchange exchange(comms, *kernels);
      const Move move = PlanMove(shape, mesh, rank, from, to);
      const Floats have = Held(shape, mesh, from, rank);
      Floats made(static_cast<size_t>(move.steps.back().make.shape().elements()));
      for (int round = 0; statuses[r].ok(); ++round) {
        if (rank == victim && round == 3) {
          group[r]->Abort(absl::AbortedError("killed"));
          return;
        }
        statuses[r] = exchange.Run(move, have, made);
      }
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable) << statuses[rank];
    }
  }
}

// Any sizes, none and large among them, in any direction: nobody waits for ever.
TEST(AllToAllTest, AnySizes) {
  constexpr int kRanks = 5;
  for (const Wire wire : {Wire::kThreads, Wire::kTcp}) {
    std::mt19937 dice(7);
    const Transports group = MakeTransports(wire, kRanks);
    for (int round = 0; round < 20; ++round) {
      // sizes[i][j]: bytes from i to j.
      std::vector<std::vector<size_t>> sizes(kRanks, std::vector<size_t>(kRanks));
      for (auto& row : sizes) {
        for (size_t& size : row) size = dice() % 3 == 0 ? 0 : dice() % (1U << (dice() % 22));
      }
      OnRanks(kRanks, [&](int rank) {
        const auto r = static_cast<size_t>(rank);
        Communicator all(*group[r], {0, 1, 2, 3, 4});
        std::vector<std::vector<std::byte>> out(kRanks), in(kRanks);
        std::vector<std::span<const std::byte>> send;
        std::vector<std::span<std::byte>> receive;
        uint64_t to_others = 0;
        for (size_t i = 0; i < kRanks; ++i) {
          out[i].assign(sizes[r][i], static_cast<std::byte>(10 * r + i));
          in[i].resize(sizes[i][r]);
          send.emplace_back(out[i]);
          receive.emplace_back(in[i]);
          if (i != r) to_others += sizes[r][i];
        }
        ASSERT_TRUE(all.AllToAll(send, receive).ok());
        for (size_t i = 0; i < kRanks; ++i) {
          const auto sent = static_cast<std::byte>(10 * i + r);
          EXPECT_EQ(std::count(in[i].begin(), in[i].end(), sent),
                    static_cast<std::ptrdiff_t>(sizes[i][r]));
        }
        EXPECT_EQ(all.bytes_sent(), to_others);
      });
    }
  }
}

TEST(AllToAllTest, RejectsMismatchedSizes) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(30));
  Communicator one(*group[0], {0, 1});
  std::vector<std::span<const std::byte>> send(1);
  std::vector<std::span<std::byte>> receive(2);
  EXPECT_EQ(one.AllToAll(send, receive).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::byte> byte(1);
  send = {byte, {}};
  EXPECT_EQ(one.AllToAll(send, receive).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre
