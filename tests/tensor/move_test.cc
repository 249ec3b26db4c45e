// Moves are planned for all ranks, carried out by hand, and compared with what they mean.
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

// Messages cost nothing: words alone decide.
constexpr MoveCost kWords{.elements_per_message = 0};

Values Part(const Values& from, const Box& from_box, const Box& box) {
  Values part(static_cast<size_t>(box.shape().elements()));
  CopyBox(from, from_box, part, box, box);
  return part;
}

// Small whole numbers, whose sums are exact in any order.
Values Numbers(int64_t n, int salt) {
  Values values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<int>(i) * 7 + salt * 13) % 31 - 15);
  }
  return values;
}

// One step, all ranks, by hand; and what the ranks say of one another must agree.
std::vector<Values> RunStep(const std::vector<Exchange>& parts, const std::vector<Values>& have) {
  std::vector<Values> made;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Exchange& part = parts[rank];
    EXPECT_EQ(part.members[part.index], static_cast<int>(rank));
    Values make(static_cast<size_t>(part.make.shape().elements()), 0.0F);
    int last_peer = -1;
    std::vector<int> falls(make.size(), 0);
    for (const Exchange::Message& message : part.receives) {
      EXPECT_GT(message.peer, last_peer) << "in members' order";
      last_peer = message.peer;
      EXPECT_FALSE(message.box.empty());
      const auto sender = static_cast<size_t>(part.members[message.peer]);
      EXPECT_EQ(parts[sender].members, part.members);
      bool sent = false;
      for (const Exchange::Message& out : parts[sender].sends) {
        sent = sent || (out.peer == part.index && out.box == message.box);
      }
      EXPECT_TRUE(sent) << "rank " << rank << " waits for " << message.box.ToString();
      AddBox(have[sender], parts[sender].have, make, part.make, message.box);
      std::vector<float> ones(have[sender].size(), 1.0F), count(make.size(), 0.0F);
      AddBox(ones, parts[sender].have, count, part.make, message.box);
      for (size_t i = 0; i < falls.size(); ++i) falls[i] += count[i] > 0 ? 1 : 0;
    }
    for (const int messages : falls) {
      EXPECT_TRUE(messages <= 1 || part.sums);
    }
    made.push_back(std::move(make));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const Exchange::Message& out : parts[rank].sends) {
      const auto& peer = parts[parts[rank].members[out.peer]];
      bool expected = false;
      for (const Exchange::Message& in : peer.receives) {
        expected = expected || (in.peer == parts[rank].index && in.box == out.box);
      }
      EXPECT_TRUE(expected) << "nobody waits for what rank " << rank << " sends";
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

// What ranks hold of a tensor that lies as `at` says, and what the tensor is. Ranks that differ
// only along axes that the placement does not name hold the same.
struct World {
  std::vector<Values> have;
  // By rank, as ranks that share a plane see it: whole tensors.
  std::vector<Values> whole;
};

Axes Named(const Layout& layout) {
  Axes axes = layout.partial_sum;
  for (const Axes& split : layout.split) axes.insert(axes.end(), split.begin(), split.end());
  for (const auto& place : layout.only) axes.push_back(place.axis);
  return axes;
}

// `apart`: axes along which the tensors are different ones (partial sums before and after).
World MakeWorld(const Shape& shape, const Mesh& mesh, const Placement& at, const Axes& apart) {
  World world;
  const Box all = Box::Whole(shape);
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Box box = at.box(rank);
    // Replicas hold the same: only the coordinates that the layout sums over, or is apart along,
    // tell the numbers apart.
    const int addend = mesh.Coordinate(rank, at.layout.partial_sum) + 1;
    world.have.push_back(Part(Numbers(shape.elements(), addend), all, box));
  }
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Values whole(static_cast<size_t>(shape.elements()), 0.0F);
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
    const auto r = static_cast<size_t>(rank);
    const Box box = to.box(rank);
    Values wanted = Part(world.whole[r], Box::Whole(shape), box);
    if (mesh.Coordinate(rank, zero_off) != 0) wanted.assign(wanted.size(), 0.0F);
    EXPECT_EQ(made[r], wanted) << "rank " << rank;
  }
}

// Every way to give each axis of the mesh to a dimension, to a partial sum, to one place, or to
// nothing.
std::vector<Layout> AllLayouts(const Mesh& mesh, int dims) {
  std::vector<Layout> layouts = {Layout{.split = std::vector<Axes>(static_cast<size_t>(dims))}};
  for (const Mesh::Axis& axis : mesh.axes()) {
    const std::vector<Layout> before = layouts;
    for (const Layout& layout : before) {
      for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
        layouts.push_back(layout);
        layouts.back().split[d].push_back(axis.name);
      }
      layouts.push_back(layout);
      layouts.back().partial_sum.push_back(axis.name);
      layouts.push_back(layout);
      layouts.back().only.push_back({axis.name, axis.size - 1});
    }
  }
  return layouts;
}

class EveryPair : public ::testing::TestWithParam<Mesh> {};

TEST_P(EveryPair, MovesWhatTheLayoutsSay) {
  const Mesh& mesh = GetParam();
  const std::vector<Shape> shapes = {{6}, {1}, {0}, {4, 6}, {5, 3}, {1, 7}, {3, 0}, {2, 5, 3}};
  for (const Shape& shape : shapes) {
    const std::vector<Layout> layouts = AllLayouts(mesh, shape.rank());
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        ExpectRight(shape, mesh, Placement::Of(shape, from, mesh), Placement::Of(shape, to, mesh));
        // With free messages sums take two steps wherever that saves words.
        if (!from.partial_sum.empty()) {
          ExpectRight(shape, mesh, Placement::Of(shape, from, mesh), Placement::Of(shape, to, mesh),
                      kWords);
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

// Axes in another order give the parts to other ranks, unless there is only one part.
TEST(MoveTest, OrderOfAxesMatters) {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const auto move = [&](const Shape& shape) {
    return PlanMove(shape, mesh, 1, Placement::Of(shape, Layout::Split(0, {"a", "b"}), mesh),
                    Placement::Of(shape, Layout::Split(0, {"b", "a"}), mesh));
  };
  EXPECT_EQ(move({4, 3}).elements_sent(), 3);
  EXPECT_TRUE(move({0, 3}).is_identity());
}

// All ranks know of a step, those with nothing to do in it too.
TEST(MoveTest, RanksAgreeOnTheSteps) {
  const Mesh mesh({{"a", 3}});
  const Shape shape{3, 4};
  const Placement first = Placement::Of(shape, {.only = {{"a", 0}}}, mesh);
  const Placement second = Placement::Of(shape, {.only = {{"a", 1}}}, mesh);
  const std::vector<Move> moves = PlanAll(shape, mesh, first, second);
  ASSERT_EQ(moves[2].steps.size(), 1U);
  EXPECT_TRUE(moves[2].steps[0].is_identity()) << "a rank that has nothing and needs nothing";
  EXPECT_EQ(moves[0].elements_sent(), 12);
  EXPECT_EQ(moves[1].steps[0].elements_received(), 12);
  EXPECT_FALSE(moves[1].steps[0].is_identity());
}

int64_t AllWords(const Shape& shape, const Mesh& mesh, const Layout& from, const Layout& to) {
  int64_t words = 0;
  for (const Move& move : PlanAll(shape, mesh, Placement::Of(shape, from, mesh),
                                  Placement::Of(shape, to, mesh), kWords)) {
    words += move.elements_sent();
  }
  return words;
}

// Total traffic of a re-layout of t words over p ranks, even parts.
TEST(MoveTest, WordsAreThoseOfTheFormulas) {
  for (const int p : {2, 3, 4, 6}) {
    const Mesh mesh({{"a", p}});
    const Shape shape{12, 24};
    const int64_t t = shape.elements();
    const Layout rows = Layout::Split(0, {"a"});
    const Layout columns = Layout::Split(1, {"a"});
    const Layout sum{.partial_sum = {"a"}};
    const Layout whole = Layout::Replicated();
    EXPECT_EQ(AllWords(shape, mesh, rows, whole), (p - 1) * t);
    EXPECT_EQ(AllWords(shape, mesh, rows, columns), (p - 1) * t / p);
    EXPECT_EQ(AllWords(shape, mesh, sum, rows), (p - 1) * t);
    EXPECT_EQ(AllWords(shape, mesh, sum, whole), 2 * (p - 1) * t);
    EXPECT_EQ(AllWords(shape, mesh, whole, rows), 0);
    EXPECT_EQ(AllWords(shape, mesh, whole, sum), 0);
  }
}

// Of a batch split over data, each plane moves its own part.
TEST(MoveTest, PlanesMoveApart) {
  const Mesh mesh({{"data", 2}, {"model", 3}});
  const Shape shape{4, 6};
  const Layout both{.split = {{"data"}, {"model"}}};
  // Each plane of 3 gathers its 2 x 6 words.
  EXPECT_EQ(AllWords(shape, mesh, both, Layout::Split(0, {"data"})), 2 * 2 * 12);
  // Samples over all, to samples over data: the same words, by rows.
  EXPECT_EQ(AllWords(shape, mesh, Layout::Split(0, {"data", "model"}), Layout::Split(0, {"data"})),
            2 * 2 * 12);
}

// Small sums are not worth two steps.
TEST(MoveTest, CostSelectsOneOrTwoSteps) {
  const Mesh mesh({{"a", 4}});
  const auto steps = [&](int64_t n) {
    const Shape shape{n};
    return PlanMove(shape, mesh, 1, Placement::Of(shape, {.partial_sum = {"a"}}, mesh),
                    Placement::Of(shape, {}, mesh))
        .steps.size();
  };
  // One step: 3 messages, 3 n words; two: 6 messages, 1.5 n words. They meet at n = 4096.
  EXPECT_EQ(steps(100), 1U);
  EXPECT_EQ(steps(4000), 1U);
  EXPECT_EQ(steps(4200), 2U);
}

// The piece in between is cut where it cuts evenly.
TEST(MoveTest, SelectsIntermediateDimension) {
  const Mesh mesh({{"a", 4}});
  const Shape shape{5, 64};
  const Move move = PlanMove(shape, mesh, 0, Placement::Of(shape, {.partial_sum = {"a"}}, mesh),
                             Placement::Of(shape, {}, mesh), kWords);
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

// 2 samples of 3 channels, rows of 5: a border is 30 words in each direction.
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

// As a sum over ranks that each had part of the channels, too.
TEST_F(HaloTest, WithPartialSums) {
  const Mesh mesh({{"space", 3}, {"model", 2}});
  Layout summed = layout_;
  summed.partial_sum = {"model"};
  const Placement wide = {summed,
                          [&](int rank) { return Widened(LocalBox(shape_, layout_, mesh, rank)); }};
  const Placement part = Placement::Of(shape_, layout_, mesh);
  ExpectRight(shape_, mesh, wide, part);
  ExpectRight(shape_, mesh, wide, part, kWords);
  ExpectRight(shape_, mesh, wide, Placement::Of(shape_, {}, mesh), kWords);
}

// A gradient that does not reach some rows leaves zeros there.
TEST_F(HaloTest, WhatNobodyHasIsZero) {
  const Placement narrow = {layout_, [this](int rank) {
                              Box box = LocalBox(shape_, layout_, mesh_, rank);
                              box.end[1] = std::min(box.end[1], box.begin[1] + 1);
                              return box;
                            }};
  ExpectRight(shape_, mesh_, narrow, part_);
  ExpectRight(shape_, mesh_, narrow, Placement::Of(shape_, {}, mesh_));
}

// More ranks than 64 are asked about their cost by two of them: all must come to one answer.
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
