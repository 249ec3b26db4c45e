#include "tensor/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace cadre {
namespace {

using Axes = std::vector<std::string>;
using ::testing::ElementsAre;

const Mesh& DataByModel() {
  static const auto& mesh = *new Mesh({{"data", 2}, {"model", 3}});
  return mesh;
}

TEST(MeshTest, WithoutAxesHasOneRank) {
  const Mesh mesh;
  EXPECT_EQ(mesh.ranks(), 1);
  EXPECT_EQ(mesh.Size("data"), 1);
  EXPECT_EQ(mesh.Coordinate(0, "data"), 0);
  EXPECT_THAT(mesh.Peers(0, Axes{"data"}), ElementsAre(0));
  EXPECT_EQ(mesh.ToString(), "{}");
}

TEST(MeshTest, RanksAreRowMajorOverTheAxes) {
  const Mesh& mesh = DataByModel();
  EXPECT_EQ(mesh.ranks(), 6);
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(mesh.Coordinate(rank, "data"), rank / 3);
    EXPECT_EQ(mesh.Coordinate(rank, "model"), rank % 3);
  }
  EXPECT_EQ(mesh.ToString(), "{data: 2, model: 3}");
}

TEST(MeshTest, ThreeAxes) {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 4}});
  for (int a = 0; a < 2; ++a) {
    for (int b = 0; b < 3; ++b) {
      for (int c = 0; c < 4; ++c) {
        const int rank = (a * 3 + b) * 4 + c;
        EXPECT_EQ(mesh.Coordinate(rank, "a"), a);
        EXPECT_EQ(mesh.Coordinate(rank, "b"), b);
        EXPECT_EQ(mesh.Coordinate(rank, "c"), c);
        EXPECT_EQ(mesh.Coordinate(rank, Axes{"c", "a"}), c * 2 + a);
      }
    }
  }
}

TEST(MeshTest, SeveralAxesInTheOrderGiven) {
  const Mesh& mesh = DataByModel();
  EXPECT_EQ(mesh.Size(Axes{}), 1);
  EXPECT_EQ(mesh.Size(Axes{"data", "model"}), 6);
  EXPECT_EQ(mesh.Size(Axes{"model", "other"}), 3);
  EXPECT_EQ(mesh.Coordinate(4, Axes{}), 0);
  EXPECT_EQ(mesh.Coordinate(4, Axes{"data", "model"}), 4);
  EXPECT_EQ(mesh.Coordinate(4, Axes{"model", "data"}), 1 * 2 + 1);
}

TEST(MeshTest, PeersDifferOnlyAlongTheAxes) {
  const Mesh& mesh = DataByModel();
  EXPECT_THAT(mesh.Peers(4, Axes{"model"}), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.Peers(4, Axes{"data"}), ElementsAre(1, 4));
  EXPECT_THAT(mesh.Peers(4, Axes{}), ElementsAre(4));
  EXPECT_THAT(mesh.Peers(4, Axes{"other"}), ElementsAre(4));
  EXPECT_THAT(mesh.Peers(4, Axes{"data", "model"}), ElementsAre(0, 1, 2, 3, 4, 5));
  // Peers are ordered by their coordinate over the axes in the order of the argument, not by rank.
  EXPECT_THAT(mesh.Peers(4, Axes{"model", "data"}), ElementsAre(0, 3, 1, 4, 2, 5));
}

// Collectives require that every member computes the same list, that its own index in the list is
// its coordinate, and that the lists of all ranks partition the mesh.
TEST(MeshTest, PeersPartitionMesh) {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  for (const Axes& axes :
       {Axes{"a"}, Axes{"b"}, Axes{"c", "a"}, Axes{"b", "c"}, Axes{"c", "b", "a"}}) {
    std::set<std::vector<int>> lists;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const std::vector<int> peers = mesh.Peers(rank, axes);
      ASSERT_EQ(std::ssize(peers), mesh.Size(axes));
      EXPECT_EQ(peers[mesh.Coordinate(rank, axes)], rank);
      for (const int peer : peers) EXPECT_EQ(mesh.Peers(peer, axes), peers);
      lists.insert(peers);
    }
    EXPECT_EQ(std::ssize(lists) * mesh.Size(axes), mesh.ranks());
  }
}

TEST(MeshTest, Equality) {
  EXPECT_EQ(DataByModel(), Mesh({{"data", 2}, {"model", 3}}));
  EXPECT_NE(DataByModel(), Mesh({{"model", 3}, {"data", 2}}));
  EXPECT_NE(DataByModel(), Mesh({{"data", 2}, {"model", 2}}));
}

}  // namespace
}  // namespace cadre
