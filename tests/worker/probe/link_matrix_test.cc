// Every pair is measured once, no host twice in a round, and all ranks get the whole matrix.
#include "worker/probe/link_matrix.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/base/expect.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

TEST(RoundRobinRoundsTest, EveryPairOccursOnce) {
  for (int hosts = 1; hosts <= 33; ++hosts) {
    const auto rounds = RoundRobinRounds(hosts);
    EXPECT_EQ(std::ssize(rounds), hosts == 1 ? 1 : hosts - 1 + hosts % 2) << hosts;
    std::set<std::pair<int, int>> met;
    for (const auto& round : rounds) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_GE(a, 0);
        EXPECT_LT(b, hosts);
        EXPECT_TRUE(busy.insert(a).second) << hosts << " hosts, " << a << " twice in a round";
        EXPECT_TRUE(busy.insert(b).second) << hosts << " hosts, " << b << " twice in a round";
        EXPECT_TRUE(met.emplace(a, b).second) << hosts << " hosts, " << a << " and " << b;
      }
    }
    EXPECT_EQ(std::ssize(met), hosts * (hosts - 1) / 2) << hosts;
  }
}

class LinkMatrixTest : public testing::TestWithParam<int> {};

TEST_P(LinkMatrixTest, AllRanksGetTheMatrix) {
  const int hosts = GetParam();
  const Transports transports = MakeTransports(Wire::kThreads, hosts);
  std::vector<LinkMatrix> matrices(transports.size());
  OnRanks(hosts, [&](int rank) {
    auto matrix = MeasureLinkMatrix(*transports[rank], absl::Now() + absl::Minutes(2));
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    if (matrix.ok()) matrices[rank] = *std::move(matrix);
  });
  for (const LinkMatrix& matrix : matrices) {
    ASSERT_EQ(matrix.size(), transports.size());
    for (size_t a = 0; a < matrix.size(); ++a) {
      ASSERT_EQ(matrix[a].size(), transports.size());
      for (size_t b = 0; b < matrix.size(); ++b) {
        EXPECT_EQ(matrix[a][b].known(), a != b) << a << " " << b;
        EXPECT_EQ(matrix[a][b].beta, matrix[b][a].beta);
        EXPECT_EQ(matrix[a][b].alpha, matrices[0][a][b].alpha);
        EXPECT_EQ(matrix[a][b].beta, matrices[0][a][b].beta);
        if (a == b) continue;
        EXPECT_GT(matrix[a][b].alpha, 0);
        EXPECT_GT(matrix[a][b].processor, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, LinkMatrixTest, testing::Values(1, 2, 3, 4, 5, 9));

TEST(LinkMatrix, FailsAfterTheDeadline) {
  const Transports transports = MakeTransports(Wire::kThreads, 2);
  OnRanks(2, [&](int rank) {
    const auto deadline = rank == 0 ? absl::InfinitePast() : absl::InfiniteFuture();
    const auto matrix = MeasureLinkMatrix(*transports[rank], deadline);
    // Rank 1 gets rank 0's reason.
    EXPECT_THAT(matrix, IsError(rank == 0 ? absl::StatusCode::kDeadlineExceeded
                                          : absl::StatusCode::kUnavailable,
                                "were not measured"));
  });
}

TEST(LinkMatrix, FailsWithLostHost) {
  const Transports transports = MakeTransports(Wire::kThreads, 3);
  transports[2]->Abort(absl::UnavailableError("host 2 has failed"));
  OnRanks(2, [&](int rank) {
    const auto matrix = MeasureLinkMatrix(*transports[rank], absl::InfiniteFuture());
    EXPECT_TRUE(absl::IsUnavailable(matrix.status())) << matrix.status();
  });
}

}  // namespace
}  // namespace cadre
