// Plans moves for all ranks, executes them on vectors and compares the results with the definition.
#include "tensor/move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using Values = std::vector<float>;  // of a box, row-major

// A cost by which only elements count, not messages.
constexpr MoveCost kNoLatency{.elements_per_message = 0};

Values Part(const Values& from, const Box& from_box, const Box& box) {
  Values part(box.shape().elements());
  CopyBox(from, from_box, part, box, box);
  return part;
}

// Small whole numbers, whose sums are exact in any order.
Values Numbers(int64_t n, int salt) {
  Values values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = (i * 7 + salt * 13) % 31 - 15;
  return values;
}

bool Contains(const std::vector<Exchange::Message>& messages, int peer, const Box& box) {
  return std::any_of(messages.begin(), messages.end(), [&](const Exchange::Message& message) {
    return message.peer == peer && message.box == box;
  });
}

// Executes one step of all ranks, and checks that senders and receivers agree on every message.
std::vector<Values> RunStep(const std::vector<Exchange>& parts, const std::vector<Values>& have) {
  std::vector<Values> made;
  for (int rank = 0; rank < std::ssize(parts); ++rank) {
    const Exchange& part = parts[rank];
    EXPECT_EQ(part.members[part.index], rank);
    Values make(part.make.shape().elements(), 0.0F);
    int last_peer = -1;
    // By element: the messages that contain it.
    std::vector<int> messages(make.size(), 0);
    for (const Exchange::Message& message : part.receives) {
      EXPECT_GT(message.peer, last_peer) << "in the order of the members";
      last_peer = message.peer;
      EXPECT_FALSE(message.box.empty());
      const int sender = part.members[message.peer];
      EXPECT_EQ(parts[sender].members, part.members);
      EXPECT_TRUE(Contains(parts[sender].sends, part.index, message.box))
          << "rank " << rank << " waits for " << message.box.ToString();
      AddBox(have[sender], parts[sender].have, make, part.make, message.box);
      std::vector<float> ones(have[sender].size(), 1.0F), count(make.size(), 0.0F);
      AddBox(ones, parts[sender].have, count, part.make, message.box);
      for (size_t i = 0; i < messages.size(); ++i) messages[i] += count[i] > 0 ? 1 : 0;
    }
    for (const int number : messages) EXPECT_TRUE(number <= 1 || part.sums);
    made.push_back(std::move(make));
  }
  for (const Exchange& part : parts) {
    for (const Exchange::Message& out : part.sends) {
      EXPECT_TRUE(Contains(parts[part.members[out.peer]].receives, part.index, out.box))
          << "no rank expects a message of rank " << part.members[part.index];
    }
  }
  return made;
}

std::vector<Move> PlanAll(const Shape& shape, const Mesh& mesh, const Placement& from,
                          const Placement& to, const MoveCost& cost = {}) {
  std::vector<Move> moves;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    moves.push_back(PlanMove(shape, mesh, rank, from, to, cost));
    EXPECT_EQ(moves[rank].steps.size(), moves[0].steps.size());
  }
  return moves;
}

std::vector<Values> RunAll(const std::vector<Move>& moves, std::vector<Values> have) {
  for (size_t step = 0; step < moves[0].steps.size(); ++step) {
    std::vector<Exchange> parts;
    for (const Move& move : moves) parts.push_back(move.steps[step]);
    have = RunStep(parts, have);
  }
  return have;
}

// A tensor with a placement. Ranks that differ only along axes that the placement does not name
// hold the same elements.
struct World {
  // By rank: the elements that it holds, and the tensor from which they are taken, which is the
  // same for all ranks of a plane.
  std::vector<Values> have;
  std::vector<Values> whole;
};

Axes Named(const Layout& layout) {
  Axes axes = layout.partial_sum;
  for (const AxisCoordinate& each : layout.at) axes.push_back(each.axis);
  for (const Axes& split : layout.split) axes.insert(axes.end(), split.begin(), split.end());
  return axes;
}

// `apart`: axes along which the ranks hold different tensors (partial sums before and after).
World MakeWorld(const Shape& shape, const Mesh& mesh, const Placement& at, const Axes& apart) {
  World world;
  const Box all = Box::Whole(shape);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = at.box(rank);
    // Values differ only along the axes over which the layout is a partial sum.
    const int addend = mesh.Coordinate(rank, at.layout.partial_sum) + 1;
    world.have.push_back(Part(Numbers(shape.elements(), addend), all, box));
  }
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Values whole(shape.elements(), 0.0F);
    Axes group;
    for (const std::string& axis : Named(at.layout)) {
      if (std::find(apart.begin(), apart.end(), axis) == apart.end()) group.push_back(axis);
    }
    for (const int peer : mesh.Peers(rank, group)) {
      const Box box = at.box(peer);
      if (!box.empty()) AddBox(world.have[peer], box, whole, all, box);
    }
    world.whole.push_back(std::move(whole));
  }
  return world;
}

void ExpectRight(const Shape& shape, const Mesh& mesh, const Placement& from, const Placement& to,
                 const MoveCost& cost = {}) {
  SCOPED_TRACE(shape.ToString() + " on " + mesh.ToString() + ": " + from.layout.ToString() +
               " -> " + to.layout.ToString());
  Axes apart;
  for (const std::string& axis : from.layout.partial_sum) {
    const Axes& after = to.layout.partial_sum;
    if (std::find(after.begin(), after.end(), axis) != after.end()) apart.push_back(axis);
  }
  Axes zero_off;
  for (const std::string& axis : to.layout.partial_sum) {
    if (std::find(apart.begin(), apart.end(), axis) == apart.end()) zero_off.push_back(axis);
  }
  const World world = MakeWorld(shape, mesh, from, apart);
  const std::vector<Move> moves = PlanAll(shape, mesh, from, to, cost);
  const std::vector<Values> made = RunAll(moves, world.have);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = to.box(rank);
    Values wanted = Part(world.whole[rank], Box::Whole(shape), box);
    if (mesh.Coordinate(rank, zero_off) != 0) wanted.assign(wanted.size(), 0.0F);
    EXPECT_EQ(made[rank], wanted) << "rank " << rank;
  }
}

// Every assignment of each axis of the mesh to a dimension, to the partial sum, to the first or
// last coordinate, or to none of them.
std::vector<Layout> AllLayouts(const Mesh& mesh, int dims) {
  std::vector<Layout> layouts = {Layout{.split = std::vector<Axes>(dims)}};
  for (const Mesh::Axis& axis : mesh.axes()) {
    const std::vector<Layout> before = layouts;
    for (const Layout& layout : before) {
      for (int d = 0; d < dims; ++d) {
        layouts.push_back(layout);
        layouts.back().split[d].push_back(axis.name);
      }
      layouts.push_back(layout);
      layouts.back().partial_sum.push_back(axis.name);
      for (const int coordinate : {0, axis.size - 1}) {
        layouts.push_back(layout);
        layouts.back().at.push_back({.axis = axis.name});
        layouts.back().at.back().coordinate = coordinate;
      }
    }
  }
  return layouts;
}

class EveryPair : public ::testing::TestWithParam<Mesh> {};

TEST_P(EveryPair, MatchesDefinition) {
  const Mesh& mesh = GetParam();
  const std::vector<Shape> shapes = {{6}, {1}, {0}, {4, 6}, {5, 3}, {1, 7}, {3, 0}, {2, 5, 3}};
  for (const Shape& shape : shapes) {
    const std::vector<Layout> layouts = AllLayouts(mesh, shape.rank());
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        ExpectRight(shape, mesh, Placement::Of(shape, from, mesh), Placement::Of(shape, to, mesh));
        // If messages cost 0, sums take two steps whenever this reduces the number of elements.
        if (!from.partial_sum.empty()) {
          ExpectRight(shape, mesh, Placement::Of(shape, from, mesh), Placement::Of(shape, to, mesh),
                      kNoLatency);
        }
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryPair,
                         ::testing::Values(Mesh(), Mesh({{"a", 2}}), Mesh({{"a", 3}}),
                                           Mesh({{"a", 2}, {"b", 2}}), Mesh({{"a", 2}, {"b", 3}})),
                         [](const auto& info) {
                           std::string name = "Mesh";
                           for (const auto& axis : info.param.axes()) {
                             name += axis.name + std::to_string(axis.size);
                           }
                           return name;
                         });

TEST(MoveTest, EqualLayoutsAreIdentity) {
  for (const Mesh& mesh : {Mesh({{"a", 2}}), Mesh({{"a", 2}, {"b", 3}})}) {
    for (const Layout& layout : AllLayouts(mesh, 2)) {
      const Shape shape{5, 7};
      const Placement at = Placement::Of(shape, layout, mesh);
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        EXPECT_TRUE(PlanMove(shape, mesh, rank, at, at).is_identity()) << layout.ToString();
      }
    }
  }
}

// Axes in a different order assign the parts to other ranks. Ranks without elements participate in
// the step, too.
TEST(MoveTest, OrderOfAxesMatters) {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const auto plan = [&](const Shape& shape) {
    return PlanAll(shape, mesh, Placement::Of(shape, Layout::Split(0, {"a", "b"}), mesh),
                   Placement::Of(shape, Layout::Split(0, {"b", "a"}), mesh));
  };
  EXPECT_EQ(plan({4, 3})[1].elements_sent(), 3);
  EXPECT_TRUE(plan({0, 3})[1].is_identity()) << "there is only one part";
  // Rank 1 holds the first of two elements and rank 3 the second; rank 2 needs the first.
  const std::vector<Move> moves = plan({2});
  ASSERT_EQ(moves[0].steps.size(), 1U);
  EXPECT_TRUE(moves[0].steps[0].is_identity()) << "a rank that has nothing and needs nothing";
  EXPECT_TRUE(moves[3].steps[0].is_identity()) << "a rank that keeps what it has";
  EXPECT_EQ(moves[1].elements_sent(), 1);
  EXPECT_EQ(moves[2].steps[0].elements_received(), 1);
  EXPECT_FALSE(moves[2].steps[0].is_identity());
}

// Only the ranks between which messages are sent take part.
TEST(MoveTest, OtherCoordinatesOnly) {
  const Mesh mesh({{"data", 2}, {"stage", 3}});
  const Shape shape{6, 2};
  const auto at = [&](int stage) {
    Layout layout = Layout::Split(0, {"data"});
    layout.at = {{.axis = "stage", .coordinate = stage}};
    return Placement::Of(shape, layout, mesh);
  };
  const std::vector<Move> moves = PlanAll(shape, mesh, at(0), at(2));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    ASSERT_EQ(moves[rank].steps.size(), 1U);
    const Exchange& part = moves[rank].steps[0];
    const int stage = rank % 3;
    EXPECT_EQ(part.is_local(), stage == 1);
    EXPECT_EQ(part.members.size(), stage == 1 ? 1U : 2U) << "its own part of the samples only";
    EXPECT_EQ(part.elements_sent(), stage == 0 ? 6 : 0);
    EXPECT_EQ(part.elements_received(), stage == 2 ? 6 : 0);
  }
}

int64_t TotalElements(const Shape& shape, const Mesh& mesh, const Layout& from, const Layout& to) {
  int64_t elements = 0;
  for (const Move& move : PlanAll(shape, mesh, Placement::Of(shape, from, mesh),
                                  Placement::Of(shape, to, mesh), kNoLatency)) {
    elements += move.elements_sent();
  }
  return elements;
}

// Total traffic of a move of t elements over p ranks with equal parts.
TEST(MoveTest, ElementsMatchFormulas) {
  for (const int p : {2, 3, 4, 6}) {
    const Mesh mesh({{"a", p}});
    const Shape shape{12, 24};
    const int64_t t = shape.elements();
    const Layout rows = Layout::Split(0, {"a"});
    const Layout columns = Layout::Split(1, {"a"});
    const Layout sum{.partial_sum = {"a"}};
    const Layout whole = Layout::Replicated();
    EXPECT_EQ(TotalElements(shape, mesh, rows, whole), (p - 1) * t);
    EXPECT_EQ(TotalElements(shape, mesh, rows, columns), (p - 1) * t / p);
    EXPECT_EQ(TotalElements(shape, mesh, sum, rows), (p - 1) * t);
    EXPECT_EQ(TotalElements(shape, mesh, sum, whole), 2 * (p - 1) * t);
    EXPECT_EQ(TotalElements(shape, mesh, whole, rows), 0);
    EXPECT_EQ(TotalElements(shape, mesh, whole, sum), 0);
  }
}

// Each plane of a batch that is split over `data` moves its own part.
TEST(MoveTest, PlanesMoveIndependently) {
  const Mesh mesh({{"data", 2}, {"model", 3}});
  const Shape shape{4, 6};
  const Layout both{.split = {{"data"}, {"model"}}};
  // Each plane of 3 ranks gathers its 2 x 6 elements.
  EXPECT_EQ(TotalElements(shape, mesh, both, Layout::Split(0, {"data"})), 2 * 2 * 12);
  // From samples over all ranks to samples over `data`: as many elements, by rows.
  EXPECT_EQ(
      TotalElements(shape, mesh, Layout::Split(0, {"data", "model"}), Layout::Split(0, {"data"})),
      2 * 2 * 12);
}

// For small sums one step is cheaper, for large sums two are.
TEST(MoveTest, CostSelectsOneOrTwoSteps) {
  const Mesh mesh({{"a", 4}});
  const auto steps = [&](int64_t n) {
    const Shape shape{n};
    return PlanMove(shape, mesh, 1, Placement::Of(shape, {.partial_sum = {"a"}}, mesh),
                    Placement::Of(shape, {}, mesh))
        .steps.size();
  };
  // One step has 3 messages and 3 n elements, two have 6 messages and 1.5 n elements: equal at
  // 4096.
  EXPECT_EQ(steps(100), 1U);
  EXPECT_EQ(steps(4000), 1U);
  EXPECT_EQ(steps(4200), 2U);
}

// The intermediate tensor is split in the dimension that splits evenly.
TEST(MoveTest, SelectsIntermediateDimension) {
  const Mesh mesh({{"a", 4}});
  const Shape shape{5, 64};
  const Move move = PlanMove(shape, mesh, 0, Placement::Of(shape, {.partial_sum = {"a"}}, mesh),
                             Placement::Of(shape, {}, mesh), kNoLatency);
  ASSERT_EQ(move.steps.size(), 2U);
  EXPECT_EQ(move.steps[0].make, (Box{{0, 0}, {5, 16}}));
  EXPECT_EQ(move.scratch_elements(), 80);
  EXPECT_TRUE(move.steps[0].sums);
  EXPECT_FALSE(move.steps[1].sums);
}

// Rows of an image over three ranks, each widened by one row on both sides, and back.
class HaloTest : public ::testing::Test {
 protected:
  static Box Widened(const Box& part) {
    Box box = part;
    box.begin[1] = std::max<int64_t>(0, box.begin[1] - 1);
    box.end[1] = std::min<int64_t>(7, box.end[1] + 1);
    return box;
  }
  const Mesh mesh_{{{"space", 3}}};
  const Shape shape_{2, 7, 5, 3};
  const Layout layout_ = Layout::Split(1, {"space"});
  const Placement part_ = Placement::Of(shape_, layout_, mesh_);
  const Placement wide_ = {
      layout_, [this](int rank) { return Widened(LocalBox(shape_, layout_, mesh_, rank)); }};
};

// With 2 samples of 3 channels and rows of 5, a border has 30 elements in each direction.
TEST_F(HaloTest, TravelsBothWays) {
  ExpectRight(shape_, mesh_, part_, wide_);
  const std::vector<Move> moves = PlanAll(shape_, mesh_, part_, wide_);
  EXPECT_EQ(moves[0].elements_sent(), 30);
  EXPECT_EQ(moves[1].elements_sent(), 60);
  EXPECT_EQ(moves[2].elements_sent(), 30);
  EXPECT_FALSE(moves[1].steps[0].sums);
}

TEST_F(HaloTest, AddsOverlappingGradients) {
  ExpectRight(shape_, mesh_, wide_, part_);
  const std::vector<Move> moves = PlanAll(shape_, mesh_, wide_, part_);
  EXPECT_EQ(moves[1].elements_sent(), 60);
  EXPECT_TRUE(moves[1].steps[0].sums);
}

// The gradient is also a partial sum, over ranks that had parts of the channels.
TEST_F(HaloTest, WithPartialSums) {
  const Mesh mesh({{"space", 3}, {"model", 2}});
  Layout summed = layout_;
  summed.partial_sum = {"model"};
  const Placement wide = {summed,
                          [&](int rank) { return Widened(LocalBox(shape_, layout_, mesh, rank)); }};
  const Placement part = Placement::Of(shape_, layout_, mesh);
  ExpectRight(shape_, mesh, wide, part);
  ExpectRight(shape_, mesh, wide, part, kNoLatency);
  ExpectRight(shape_, mesh, wide, Placement::Of(shape_, {}, mesh), kNoLatency);
}

// Rows without a gradient on any rank become zero.
TEST_F(HaloTest, RowsOfNoRankAreZero) {
  const Placement narrow = {layout_, [this](int rank) {
                              Box box = LocalBox(shape_, layout_, mesh_, rank);
                              box.end[1] = std::min(box.end[1], box.begin[1] + 1);
                              return box;
                            }};
  ExpectRight(shape_, mesh_, narrow, part_);
  ExpectRight(shape_, mesh_, narrow, Placement::Of(shape_, {}, mesh_));
}

// Above 64 ranks, costs are computed for two ranks only; all ranks must still choose the same
// steps.
TEST(MoveTest, ManyRanksAgree) {
  const Mesh mesh({{"a", 70}});
  const Shape shape{70, 211};
  const Placement from = Placement::Of(shape, {.partial_sum = {"a"}}, mesh);
  ExpectRight(shape, mesh, from, Placement::Of(shape, {}, mesh));
  const std::vector<Move> moves = PlanAll(shape, mesh, from, Placement::Of(shape, {}, mesh));
  EXPECT_EQ(moves[0].steps.size(), 2U);
}

}  // namespace
}  // namespace cadre
