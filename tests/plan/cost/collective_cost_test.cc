#include "plan/cost/collective_cost.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace cadre {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kButterfly,
                                     Algorithm::kHalvingDoubling};

// 10 Gbit/s, 50 microseconds.
LinkProfile TenGigabit() { return {.alpha = 50e-6, .beta = 8 / 10e9}; }

double Milliseconds(Algorithm algorithm, int ranks, int64_t bytes) {
  return 1e3 * SecondsOf(Collective::kAllReduce, algorithm, ranks, bytes, TenGigabit());
}

struct Layer {
  bool convolution;
  int64_t bytes;
};

// Weights of AlexNet (one tower, 227 x 227), in bytes of float32.
std::vector<Layer> AlexNet() {
  return {
      {true, 4LL * 96 * 3 * 11 * 11},  {true, 4LL * 256 * 96 * 5 * 5},
      {true, 4LL * 384 * 256 * 3 * 3}, {true, 4LL * 384 * 384 * 3 * 3},
      {true, 4LL * 256 * 384 * 3 * 3}, {false, 4LL * 9216 * 4096},
      {false, 4LL * 4096 * 4096},      {false, 4LL * 4096 * 1000},
  };
}

TEST(CollectiveCostTest, ButterflyLimit) {
  const LinkProfile unit{.alpha = 1, .beta = 1};
  EXPECT_NEAR(ButterflyLimit(4, unit), 8.0, 0.005);
  EXPECT_NEAR(ButterflyLimit(8, unit), 8.8, 0.005);
  EXPECT_NEAR(ButterflyLimit(16, unit), 12.24, 0.005);
  EXPECT_NEAR(ButterflyLimit(32, unit), 18.61, 0.005);
  EXPECT_NEAR(ButterflyLimit(64, unit), 29.77, 0.005);
  EXPECT_EQ(ButterflyLimit(2, unit), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(ButterflyLimit(8, TenGigabit()), 550'000, 0.5);
  EXPECT_NEAR(Milliseconds(Algorithm::kRing, 8, 550'000),
              Milliseconds(Algorithm::kButterfly, 8, 550'000), 1e-9);
}

TEST(CollectiveCostTest, AlexNetOnEightRanks) {
  const struct {
    int64_t bytes;
    double ring, butterfly, halving;
    double tolerance;
  } worked[] = {{139'392, 0.8951, 0.4845, 0.4951, 5e-5},
                {3'538'944, 5.6545, 8.6435, 5.2545, 5e-5},
                {150'994'944, 212.09, 362.54, 211.69, 5e-3}};
  for (const auto& row : worked) {
    EXPECT_NEAR(Milliseconds(Algorithm::kRing, 8, row.bytes), row.ring, row.tolerance);
    EXPECT_NEAR(Milliseconds(Algorithm::kButterfly, 8, row.bytes), row.butterfly, row.tolerance);
    EXPECT_NEAR(Milliseconds(Algorithm::kHalvingDoubling, 8, row.bytes), row.halving,
                row.tolerance);
  }
}

TEST(CollectiveCostTest, ChoiceBySizeBeatsKind) {
  for (const int ranks : {4, 8, 16, 32}) {
    double by_size = 0;
    double by_kind = 0;
    for (const Layer& layer : AlexNet()) {
      const Algorithm best =
          BestAlgorithm(Collective::kAllReduce, ranks, layer.bytes, TenGigabit());
      const double chosen = Milliseconds(best, ranks, layer.bytes);
      const double ring = Milliseconds(Algorithm::kRing, ranks, layer.bytes);
      const double butterfly = Milliseconds(Algorithm::kButterfly, ranks, layer.bytes);
      EXPECT_LE(chosen, ring);
      EXPECT_LE(chosen, butterfly);
      by_size += chosen;
      by_kind += layer.convolution ? butterfly : ring;
    }
    EXPECT_LT(by_size, by_kind) << ranks;
  }
}

TEST(CollectiveCostTest, OneRankIsFree) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Collective collective :
         {Collective::kReduceScatter, Collective::kAllGather, Collective::kAllReduce}) {
      EXPECT_EQ(SecondsOf(collective, algorithm, 1, 1'000'000, TenGigabit()), 0);
      EXPECT_EQ(WorkOf(collective, algorithm, 1, 1'000'000).bytes, 0);
      EXPECT_EQ(WorkOf(collective, algorithm, 1, 1'000'000).steps, 0);
    }
  }
  EXPECT_EQ(BestAlgorithm(Collective::kAllReduce, 1, 100, TenGigabit()), Algorithm::kRing);
}

TEST(CollectiveCostTest, WorkHasLowerBounds) {
  for (int ranks = 2; ranks <= 64; ++ranks) {
    const double share = 1e6 * (ranks - 1) / ranks;
    const double min_steps = std::ceil(std::log2(ranks));
    for (const Algorithm algorithm : kAlgorithms) {
      for (const auto& [collective, shares] :
           {std::pair(Collective::kReduceScatter, 1), std::pair(Collective::kAllGather, 1),
            std::pair(Collective::kAllReduce, 2)}) {
        const CollectiveWork work = WorkOf(collective, algorithm, ranks, 1'000'000);
        EXPECT_GE(work.steps, min_steps);
        // Recursive doubling on two ranks sends the whole buffer once and has no second phase.
        const bool once = ranks == 2 && algorithm == Algorithm::kButterfly;
        EXPECT_GE(work.bytes, (once ? 1 : shares) * share - 1e-6) << ranks;
        EXPECT_GE(work.added, collective == Collective::kAllGather ? 0 : share - 1e-6);
      }
    }
  }
}

TEST(CollectiveCostTest, CountsAdditions) {
  LinkProfile link = TenGigabit();
  const double without = SecondsOf(Collective::kAllReduce, Algorithm::kRing, 4, 4'000'000, link);
  link.gamma = 1e-9;
  EXPECT_NEAR(SecondsOf(Collective::kAllReduce, Algorithm::kRing, 4, 4'000'000, link),
              without + 3e-3, 1e-12);
}

LinkProfile Measured() {
  LinkProfile link = TenGigabit();
  link.samples = {{Algorithm::kRing, 4, 1'000'000, 4e-3},
                  {Algorithm::kRing, 4, 10'000, 1e-3},
                  {Algorithm::kRing, 8, 1'000, 7.0},
                  {Algorithm::kButterfly, 4, 10'000, 0.5e-3}};
  return link;
}

TEST(MeasuredCostTest, Interpolates) {
  const auto ring = [](int64_t bytes) {
    return SecondsOf(Collective::kAllReduce, Algorithm::kRing, 4, bytes, Measured());
  };
  EXPECT_DOUBLE_EQ(ring(10'000), 1e-3);
  EXPECT_DOUBLE_EQ(ring(1'000'000), 4e-3);
  // Half way between the logarithms is the geometric mean.
  EXPECT_NEAR(ring(100'000), 2e-3, 1e-12);
  EXPECT_LT(ring(50'000), ring(60'000));
}

TEST(MeasuredCostTest, ScalesFormulaOutside) {
  const LinkProfile formula = TenGigabit();
  const auto ratio = [&](int64_t bytes, Algorithm algorithm) {
    return SecondsOf(Collective::kAllReduce, algorithm, 4, bytes, Measured()) /
           SecondsOf(Collective::kAllReduce, algorithm, 4, bytes, formula);
  };
  EXPECT_DOUBLE_EQ(ratio(0, Algorithm::kRing), ratio(10'000, Algorithm::kRing));
  EXPECT_DOUBLE_EQ(ratio(77, Algorithm::kButterfly), ratio(10'000, Algorithm::kButterfly));
  // Without samples.
  EXPECT_DOUBLE_EQ(ratio(10'000, Algorithm::kHalvingDoubling), 1);
  EXPECT_DOUBLE_EQ(SecondsOf(Collective::kAllReduce, Algorithm::kRing, 5, 1'000, Measured()),
                   SecondsOf(Collective::kAllReduce, Algorithm::kRing, 5, 1'000, formula));
}

TEST(MeasuredCostTest, ExtrapolatesBandwidth) {
  const auto ring = [](int64_t bytes, const LinkProfile& link) {
    return SecondsOf(Collective::kAllReduce, Algorithm::kRing, 4, bytes, link);
  };
  const LinkProfile formula = TenGigabit();
  // Latency is a fifth of the formula at 1 MB, so the formula's difference is added.
  EXPECT_NEAR(ring(64'000'000, Measured()),
              4e-3 + ring(64'000'000, formula) - ring(1'000'000, formula), 1e-12);
  LinkProfile large = Measured();
  large.samples.push_back({Algorithm::kRing, 4, 16'000'000, 0.1});
  EXPECT_NEAR(ring(64'000'000, large), 0.1 * ring(64'000'000, formula) / ring(16'000'000, formula),
              1e-12);
}

TEST(MeasuredCostTest, PhasesScaleWithAllReduce) {
  const LinkProfile formula = TenGigabit();
  for (const int64_t bytes : {100, 30'000, 5'000'000}) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
      const double ratio = SecondsOf(Collective::kAllReduce, algorithm, 4, bytes, Measured()) /
                           SecondsOf(Collective::kAllReduce, algorithm, 4, bytes, formula);
      for (const Collective part : {Collective::kReduceScatter, Collective::kAllGather}) {
        EXPECT_NEAR(SecondsOf(part, algorithm, 4, bytes, Measured()) /
                        SecondsOf(part, algorithm, 4, bytes, formula),
                    ratio, 1e-9);
      }
    }
  }
}

TEST(MeasuredCostTest, DeterminesChoice) {
  LinkProfile link = TenGigabit();
  EXPECT_EQ(BestAlgorithm(Collective::kAllReduce, 4, 1'000, link), Algorithm::kButterfly);
  link.samples = {{Algorithm::kRing, 4, 1'000, 1e-6}, {Algorithm::kButterfly, 4, 1'000, 2e-6}};
  EXPECT_EQ(BestAlgorithm(Collective::kAllReduce, 4, 1'000, link), Algorithm::kRing);
}

TEST(MeasuredCostTest, NativeIsRingUntilTimed) {
  LinkProfile link = TenGigabit();
  EXPECT_FALSE(link.native());
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    EXPECT_EQ(SecondsOf(collective, Algorithm::kNative, 4, 1 << 20, link),
              SecondsOf(collective, Algorithm::kRing, 4, 1 << 20, link));
  }
  link.samples = {{Algorithm::kNative, 4, 1'000, 1e-6}};
  EXPECT_TRUE(link.native());
  EXPECT_DOUBLE_EQ(SecondsOf(Collective::kAllReduce, Algorithm::kNative, 4, 1'000, link), 1e-6);
  EXPECT_EQ(BestAlgorithm(Collective::kAllReduce, 4, 1'000, link), Algorithm::kNative);
}

TEST(BucketTest, GrowWithLatency) {
  const LinkProfile near{.alpha = 5e-6, .beta = 1e-10};
  const LinkProfile far{.alpha = 5e-3, .beta = 1e-10};
  EXPECT_LT(BucketElements(4, near), BucketElements(4, far));
  EXPECT_LE(BucketElements(2, TenGigabit()), BucketElements(32, TenGigabit()));
  // Latency is at most a tenth of the time within the limits.
  const int64_t bytes = 4 * BucketElements(8, TenGigabit());
  const Algorithm best = BestAlgorithm(Collective::kAllReduce, 8, bytes, TenGigabit());
  const CollectiveWork work = WorkOf(Collective::kAllReduce, best, 8, bytes);
  EXPECT_LE(work.steps * TenGigabit().alpha, 0.1 * 1e-3 * Milliseconds(best, 8, bytes));
  EXPECT_GT(BucketElements(4, LinkProfile{}), 0);
}

TEST(LinkProfileTest, ProtoRoundTrip) {
  LinkProfile link = Measured();
  link.gamma = 1e-10;
  const auto again = LinkProfileFromProto(LinkProfileToProto(link));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->known());
  EXPECT_EQ(again->alpha, link.alpha);
  EXPECT_EQ(again->beta, link.beta);
  EXPECT_EQ(again->gamma, link.gamma);
  ASSERT_EQ(again->samples.size(), link.samples.size());
  for (size_t i = 0; i < link.samples.size(); ++i) {
    EXPECT_EQ(again->samples[i].algorithm, link.samples[i].algorithm);
    EXPECT_EQ(again->samples[i].ranks, link.samples[i].ranks);
    EXPECT_EQ(again->samples[i].bytes, link.samples[i].bytes);
    EXPECT_EQ(again->samples[i].seconds, link.samples[i].seconds);
  }
  EXPECT_FALSE(LinkProfileFromProto({})->known());
}

TEST(LinkProfileTest, RejectsInvalid) {
  const auto status_of = [](const std::string& text) {
    v1::LinkProfile proto;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
    return LinkProfileFromProto(proto).status();
  };
  EXPECT_EQ(status_of("beta: 1e-9 samples { algorithm: RING ranks: 2 bytes: 100 seconds: 1e-3 }"),
            absl::OkStatus());
  for (const char* text :
       {"alpha: -1", "alpha: inf", "beta: nan",
        "samples { algorithm: RING ranks: 2 bytes: 100 seconds: 0 }",
        "samples { algorithm: RING ranks: 2 bytes: 100 seconds: -1 }",
        "samples { algorithm: RING ranks: 2 bytes: 100 seconds: nan }",
        "samples { algorithm: RING ranks: 2 bytes: 0 seconds: 1e-3 }",
        "samples { algorithm: RING ranks: 2 bytes: 18446744073709551615 seconds: 1e-3 }",
        "samples { ranks: 2 bytes: 100 seconds: 1e-3 }"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status_of(text))) << text;
  }
}

}  // namespace
}  // namespace cadre
