// Executes moves between ranks that are threads, over shared memory and TCP.
#include "comm/box_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using Floats = std::vector<float>;

constexpr MoveCost kElementsOnly{.elements_per_message = 0};

// Small integers, whose sums are exact in any order.
Floats Numbers(const Shape& shape, int seed) {
  Floats values(shape.elements());
  for (int i = 0; i < std::ssize(values); ++i) values[i] = (i * 7 + seed * 13) % 31 - 15;
  return values;
}

Floats Part(const Floats& whole, const Shape& shape, const Box& box) {
  Floats part(box.shape().elements());
  CopyBox(whole, Box::Whole(shape), part, box, box);
  return part;
}

// The rank's part of the tensor, or of its addend of a partial sum.
Floats Held(const Shape& shape, const Mesh& mesh, const Placement& at, int rank) {
  const int addend = mesh.Coordinate(rank, at.layout.partial_sum);
  return Part(Numbers(shape, addend), shape, at.box(rank));
}

Floats Whole(const Shape& shape, const Mesh& mesh, const Placement& at) {
  Floats sum(shape.elements(), 0.0F);
  for (int addend = 0; addend < mesh.Size(at.layout.partial_sum); ++addend) {
    const Floats values = Numbers(shape, addend);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

class BoxExchangeTest : public ::testing::TestWithParam<Wire> {
 protected:
  // Every rank receives its part of the tensor and sends as many elements as planned.
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
      const Move move = PlanMove(shape, mesh, rank, from, to, kElementsOnly);
      ASSERT_FALSE(move.is_identity());
      const Floats have = Held(shape, mesh, from, rank);
      const Floats expected = Part(whole, shape, to.box(rank));
      // Twice, with new and with used buffers.
      for (int run = 0; run < 2; ++run) {
        Floats made(expected.size(), -77.0F);
        const absl::Status status = exchange.Run(move, have, made);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(made, expected) << "rank " << rank;
      }
      EXPECT_EQ(comms.bytes_sent(), 2 * sizeof(float) * move.elements_sent());
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

// (1e8 + 1) - 1e8 is 0 in fp32 and (1e8 - 1e8) + 1 is not.
TEST(BoxExchangeSumTest, AddsInOrderOfMembers) {
  const Mesh mesh({{"a", 3}});
  const Shape shape{4, 3};
  const Placement from = Placement::Of(shape, {.partial_sum = {"a"}}, mesh);
  const Placement to = Placement::Of(shape, Layout::Split(0, {"a"}), mesh);
  const float addends[] = {1e8F, 1.0F, -1e8F};
  const float expected = (addends[0] + addends[1]) + addends[2];
  const Transports group = MakeThreadTransports(3, absl::Seconds(30));
  OnRanks(3, [&](int rank) {
    MeshCommunicators comms(*group[rank], mesh);
    const auto kernels = MakeReferenceBackend();
    BoxExchange exchange(comms, *kernels);
    const Floats have(12, addends[rank]);
    const Move move = PlanMove(shape, mesh, rank, from, to);
    for (int run = 0; run < 50; ++run) {
      Floats made(move.steps.back().make.shape().elements());
      ASSERT_TRUE(exchange.Run(move, have, made).ok());
      EXPECT_THAT(made, ::testing::Each(expected));
    }
  });
}

// Overlaps of a gradient are added; elements that no rank holds are zero.
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
  const std::vector<Floats> expected = {{1, 2, 13}, {24, 30, 0}};
  OnRanks(2, [&](int rank) {
    MeshCommunicators comms(*group[rank], mesh);
    const auto kernels = MakeReferenceBackend();
    BoxExchange exchange(comms, *kernels);
    Floats made(3, -1.0F);
    ASSERT_TRUE(exchange.Run(PlanMove(shape, mesh, rank, have, to), held[rank], made).ok());
    EXPECT_EQ(made, expected[rank]);
  });
}

}  // namespace
}  // namespace cadre
