// The probe of a group's links: plausible values, with equal bits on all ranks, over every kind of
// link.
#include "comm/link_probe.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

// The measures of all ranks.
std::vector<LinkProfile> MeasureOn(const Transports& transports) {
  std::vector<LinkProfile> measured(transports.size());
  OnRanks(std::ssize(transports), [&](int rank) {
    Communicator all(*transports[rank], AllRanks(std::ssize(transports)));
    absl::StatusOr<LinkProfile> own = MeasureLink(all);
    EXPECT_TRUE(own.ok()) << own.status();
    if (own.ok()) measured[rank] = *std::move(own);
    // The probe leaves no message in the transport.
    EXPECT_TRUE(all.Barrier().ok());
  });
  return measured;
}

void ExpectBetweenZeroAnd(double limit, double value) {
  EXPECT_GT(value, 0);
  EXPECT_LT(value, limit);
}

struct Case {
  Wire wire;
  int ranks;
};

class LinkProbeTest : public testing::TestWithParam<Case> {};

TEST_P(LinkProbeTest, PlausibleAndEqualOnAllRanks) {
  const Transports transports = MakeTransports(GetParam().wire, GetParam().ranks);
  const std::vector<LinkProfile> all = MeasureOn(transports);
  const LinkProfile& measured = all.front();
  // Inside a host, however loaded, a message takes less than a second and a byte less than at 1
  // MB/s.
  ExpectBetweenZeroAnd(1, measured.alpha);
  ExpectBetweenZeroAnd(1e-6, measured.beta);
  ExpectBetweenZeroAnd(1e-6, measured.gamma);
  std::map<int64_t, std::set<Algorithm>> by_size;
  for (const LinkProfile::Sample& sample : measured.samples) {
    EXPECT_GT(sample.bytes, 0);
    ExpectBetweenZeroAnd(std::numeric_limits<double>::infinity(), sample.seconds);
    EXPECT_TRUE(by_size[sample.bytes].insert(sample.algorithm).second) << "a duplicate sample";
  }
  for (const auto& [bytes, algorithms] : by_size) {
    EXPECT_EQ(algorithms, (std::set<Algorithm>{Algorithm::kRing, Algorithm::kButterfly,
                                               Algorithm::kHalvingDoubling}))
        << bytes;
  }
  for (const LinkProfile& other : all) {
    EXPECT_EQ(other.alpha, measured.alpha);
    EXPECT_EQ(other.beta, measured.beta);
    EXPECT_EQ(other.gamma, measured.gamma);
    ASSERT_EQ(other.samples.size(), measured.samples.size());
    for (size_t i = 0; i < other.samples.size(); ++i) {
      EXPECT_EQ(other.samples[i].algorithm, measured.samples[i].algorithm);
      EXPECT_EQ(other.samples[i].bytes, measured.samples[i].bytes);
      EXPECT_EQ(other.samples[i].seconds, measured.samples[i].seconds);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, LinkProbeTest,
                         testing::Values(Case{Wire::kThreads, 2}, Case{Wire::kThreads, 3},
                                         Case{Wire::kSharedMemory, 2}, Case{Wire::kTcp, 2},
                                         Case{Wire::kTcp, 4}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return WireName(info.param.wire) + std::to_string(info.param.ranks);
                         });

TEST(LinkProbe, SingleMemberReturnsZero) {
  const Transports transports = MakeTransports(Wire::kThreads, 1);
  Communicator all(*transports[0], {0});
  const absl::StatusOr<LinkProfile> measured = MeasureLink(all);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->alpha, 0);
  EXPECT_EQ(measured->beta, 0);
  EXPECT_EQ(measured->gamma, 0);
  EXPECT_TRUE(measured->samples.empty());
}

TEST(LinkProbe, SubsetOfGroup) {
  const Transports transports = MakeTransports(Wire::kThreads, 3);
  OnRanks(3, [&](int rank) {
    if (rank == 1) return;
    Communicator two(*transports[rank], {2, 0});
    const absl::StatusOr<LinkProfile> measured = MeasureLink(two);
    EXPECT_TRUE(measured.ok()) << measured.status();
    if (measured.ok()) ExpectBetweenZeroAnd(1, measured->alpha);
  });
}

TEST(LinkProbe, LostMemberFailsProbe) {
  const Transports transports = MakeTransports(Wire::kThreads, 2);
  transports[1]->Abort(absl::UnavailableError("rank 1 stopped"));
  Communicator all(*transports[0], {0, 1});
  const absl::StatusOr<LinkProfile> measured = MeasureLink(all);
  ASSERT_FALSE(measured.ok());
  EXPECT_TRUE(absl::IsUnavailable(measured.status())) << measured.status();
}

}  // namespace
}  // namespace cadre
