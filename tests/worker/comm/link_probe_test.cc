// What is measured of a group's links is sane, whatever connects the group, and has the same bits
// on all ranks.
#include "worker/comm/link_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/worker/transport/ranks.h"
#include "worker/comm/communicator.h"

namespace cadre {
namespace {

std::vector<int> Everybody(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// What every rank got, by rank.
std::vector<LinkMeasure> MeasureOn(const Transports& transports) {
  std::vector<LinkMeasure> measured(transports.size());
  OnRanks(std::ssize(transports), [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    Communicator all(*transports[i], Everybody(std::ssize(transports)));
    absl::StatusOr<LinkMeasure> own = MeasureLink(all);
    EXPECT_TRUE(own.ok()) << own.status();
    if (own.ok()) measured[i] = *std::move(own);
    // The transport is still in step: nothing of the probe is left in it.
    EXPECT_TRUE(all.Barrier().ok());
  });
  return measured;
}

void ExpectPositive(double value) {
  EXPECT_GT(value, 0);
  EXPECT_TRUE(std::isfinite(value)) << value;
}

struct Case {
  Wire wire;
  int ranks;
};

class LinkProbeTest : public testing::TestWithParam<Case> {};

TEST_P(LinkProbeTest, ValuesArePlausible) {
  const Transports transports = MakeTransports(GetParam().wire, GetParam().ranks);
  const LinkMeasure measured = MeasureOn(transports).front();
  ExpectPositive(measured.alpha);
  ExpectPositive(measured.beta);
  ExpectPositive(measured.gamma);
  // Within one machine, however busy: a message takes less than a second, a byte less than one
  // sent at 1 MB/s.
  EXPECT_LT(measured.alpha, 1);
  EXPECT_LT(measured.beta, 1e-6);
  EXPECT_LT(measured.gamma, 1e-6);
}

TEST_P(LinkProbeTest, SamplesAllAlgorithmsPerSize) {
  const Transports transports = MakeTransports(GetParam().wire, GetParam().ranks);
  const LinkMeasure measured = MeasureOn(transports).front();
  std::map<int64_t, std::set<Algorithm>> by_size;
  for (const LinkMeasure::Sample& sample : measured.samples) {
    EXPECT_GT(sample.bytes, 0);
    ExpectPositive(sample.seconds);
    EXPECT_TRUE(by_size[sample.bytes].insert(sample.algorithm).second) << "twice";
  }
  for (const auto& [bytes, algorithms] : by_size) {
    EXPECT_EQ(algorithms, (std::set<Algorithm>{Algorithm::kRing, Algorithm::kButterfly,
                                               Algorithm::kHalvingDoubling}))
        << bytes;
  }
}

TEST_P(LinkProbeTest, EqualBitsOnAllRanks) {
  const Transports transports = MakeTransports(GetParam().wire, GetParam().ranks);
  const std::vector<LinkMeasure> measured = MeasureOn(transports);
  for (const LinkMeasure& other : measured) {
    EXPECT_EQ(other.alpha, measured.front().alpha);
    EXPECT_EQ(other.beta, measured.front().beta);
    EXPECT_EQ(other.gamma, measured.front().gamma);
    ASSERT_EQ(other.samples.size(), measured.front().samples.size());
    for (size_t i = 0; i < other.samples.size(); ++i) {
      EXPECT_EQ(other.samples[i].algorithm, measured.front().samples[i].algorithm);
      EXPECT_EQ(other.samples[i].bytes, measured.front().samples[i].bytes);
      EXPECT_EQ(other.samples[i].seconds, measured.front().samples[i].seconds);
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
  const absl::StatusOr<LinkMeasure> measured = MeasureLink(all);
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
    const absl::StatusOr<LinkMeasure> measured = MeasureLink(two);
    EXPECT_TRUE(measured.ok()) << measured.status();
    if (measured.ok()) ExpectPositive(measured->alpha);
  });
}

TEST(LinkProbe, LostMemberFailsProbe) {
  const Transports transports = MakeTransports(Wire::kThreads, 2);
  transports[1]->Abort(absl::UnavailableError("rank 1 went home"));
  Communicator all(*transports[0], {0, 1});
  const absl::StatusOr<LinkMeasure> measured = MeasureLink(all);
  ASSERT_FALSE(measured.ok());
  EXPECT_TRUE(absl::IsUnavailable(measured.status())) << measured.status();
}

}  // namespace
}  // namespace cadre
