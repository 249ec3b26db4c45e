#include "plan/placement/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace cadre {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMaxBytes = 1'000'000;

TEST(RoutesTest, RouteDependsOnSize) {
  // Direct: 1 s and 10 bytes per second. By the switch: 4 s and 100 bytes per second on each link.
  const Routes routes(2, 3, {{0, 1, 1, 0.1}, {0, 2, 2, 0.01}, {1, 2, 2, 0.01}}, kMaxBytes);
  EXPECT_DOUBLE_EQ(routes.Seconds(0, 1, 0), 1);
  EXPECT_DOUBLE_EQ(routes.Seconds(0, 1, 10), 2);
  EXPECT_DOUBLE_EQ(routes.Seconds(0, 1, 1000), 24);
  EXPECT_THAT(routes.Path(0, 1, 10), ElementsAre(0));
  EXPECT_THAT(routes.Path(0, 1, 1000), ElementsAre(1, 2));
  EXPECT_THAT(routes.Path(1, 0, 1000), ElementsAre(2, 1));
}

TEST(RoutesTest, OneDevice) {
  const Routes routes(1, 1, {}, kMaxBytes);
  EXPECT_DOUBLE_EQ(routes.Seconds(0, 0, 100), 0);
  EXPECT_THAT(routes.Path(0, 0, 100), ElementsAre());
}

TEST(RoutesTest, UnconnectedDevices) {
  const Routes routes(3, 3, {{0, 1, 1, 1}}, kMaxBytes);
  EXPECT_DOUBLE_EQ(routes.Seconds(1, 0, 0), 1);
  EXPECT_EQ(routes.Seconds(0, 2, 0), std::numeric_limits<double>::infinity());
}

TEST(RoutesTest, EqualDevices) {
  // A star with one slow link.
  const Routes routes(3, 4, {{0, 3, 1, 1}, {1, 3, 1, 1}, {2, 3, 1, 2}}, kMaxBytes);
  EXPECT_TRUE(routes.SameRoutes(0, 1, 2));
  EXPECT_FALSE(routes.SameRoutes(0, 2, 1));
}

// Random networks, compared with Floyd and Warshall for each size.
TEST(RoutesTest, EqualsShortestPaths) {
  std::mt19937_64 random(7);
  const auto between = [&](int min, int max) -> int {
    const int64_t offset = random() % (max - min + 1);
    return min + offset;
  };
  for (int round = 0; round < 200; ++round) {
    const int nodes = between(3, 8);
    const int devices = between(2, nodes);
    std::vector<Routes::Link> links;
    for (int n = 1; n < nodes; ++n) {
      links.push_back({between(0, n - 1), n, 1.0 * between(0, 40), 0.25 * between(1, 40)});
    }
    for (int more = between(0, 8); more > 0; --more) {
      const int from = between(0, nodes - 2);
      links.push_back(
          {from, between(from + 1, nodes - 1), 1.0 * between(0, 40), 0.25 * between(1, 40)});
    }
    const Routes routes(devices, nodes, links, 64);
    for (const int64_t bytes : {0, 1, 2, 5, 17, 64}) {
      std::vector<std::vector<double>> ways(
          nodes, std::vector<double>(nodes, std::numeric_limits<double>::infinity()));
      const auto way = [&](int a, int b) -> double& { return ways[a][b]; };
      for (int n = 0; n < nodes; ++n) way(n, n) = 0;
      const auto seconds = [&](const Routes::Link& link) { return link.alpha + link.beta * bytes; };
      for (const Routes::Link& link : links) {
        way(link.from, link.to) = way(link.to, link.from) =
            std::min(way(link.from, link.to), seconds(link));
      }
      for (int k = 0; k < nodes; ++k) {
        for (int i = 0; i < nodes; ++i) {
          for (int j = 0; j < nodes; ++j) way(i, j) = std::min(way(i, j), way(i, k) + way(k, j));
        }
      }
      for (int a = 0; a < devices; ++a) {
        for (int b = 0; b < devices; ++b) {
          EXPECT_DOUBLE_EQ(routes.Seconds(a, b, bytes), way(a, b));
          double along = 0;
          for (const int l : routes.Path(a, b, bytes)) along += seconds(links[l]);
          EXPECT_DOUBLE_EQ(along, way(a, b));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadre
