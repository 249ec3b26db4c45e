#include "plan/plan_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A convolution and a batch norm with 1,024 + 128 + 128 bytes of parameters, and two fully
// connected layers with 640 KiB.
constexpr char kTwoProducts[] = R"(model {
  input { channels: 4 height: 8 width: 8 }
  layer { name: "conv" convolution { out_channels: 16 kernel: 2 stride: 2 no_bias: true } }
  layer { name: "norm" batch_norm {} }
  layer { name: "flat" flatten {} }
  layer { name: "fc1" fully_connected { out_features: 512 } }
  layer { name: "relu" relu {} }
  layer { name: "fc2" fully_connected { out_features: 16 } }
  layer { name: "loss" softmax_cross_entropy {} }
})";

// 10 Gbit/s Ethernet.
constexpr double kAlpha = 50e-6;
constexpr double kBeta = 1 / 1.25e9;

// Seconds of all buckets, without overlap.
double CommunicationSeconds(const Plan& plan, const ParameterIndex& index) {
  double seconds = 0;
  for (const Bucket& bucket : plan.buckets) {
    seconds += CostOf(plan, index, bucket, bucket.algorithm, plan.link).seconds();
  }
  return seconds;
}

class PlanCollectivesTest : public ::testing::Test {
 protected:
  PlanCollectivesTest()
      : graph_(*Graph::FromModel(testing::SpecOf(kTwoProducts).model())),
        index_(ParameterIndex::FromGraph(graph_)) {
    Split(Mesh({{"data", 8}}), {{"samples", {"data"}}});
    link_.alpha = kAlpha;
    link_.beta = kBeta;
  }

  // Splits every layer in the same way.
  void Split(Mesh mesh, const std::vector<IndexSplit>& splits) {
    plan_.mesh = std::move(mesh);
    plan_.layers.clear();
    for (const GraphLayer& layer : graph_.layers()) {
      auto layouts = LayOut(layer, plan_.mesh, splits);
      ASSERT_TRUE(layouts.ok()) << layouts.status();
      plan_.layers.push_back(*std::move(layouts));
    }
  }

  Plan With(v1::Cluster::CollectivePolicy policy,
            std::optional<int64_t> bucket_elements = std::nullopt) {
    Plan plan = WithCollectives(plan_, graph_, index_, policy, link_, v1::LinkProfile::TCP,
                                bucket_elements);
    EXPECT_EQ(CheckPlan(plan, graph_, index_), absl::OkStatus()) << PolicyName(policy);
    return plan;
  }

  // One text per bucket, such as "conv/weight ring": its first parameter and its algorithm.
  std::vector<std::string> Choices(const Plan& plan) const {
    std::vector<std::string> choices;
    for (const Bucket& bucket : plan.buckets) {
      choices.push_back(index_[bucket.parameters.front()].name + " " +
                        std::string(AlgorithmName(bucket.algorithm)));
    }
    return choices;
  }

  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
  LinkProfile link_;
};

TEST_F(PlanCollectivesTest, PoliciesPrescribe) {
  EXPECT_THAT(Choices(With(v1::Cluster::RING, 0)), ElementsAre("conv/weight ring"));
  EXPECT_THAT(Choices(With(v1::Cluster::BUTTERFLY, 0)), ElementsAre("conv/weight butterfly"));
  EXPECT_THAT(Choices(With(v1::Cluster::HALVING_DOUBLING, 0)),
              ElementsAre("conv/weight halving-doubling"));
  EXPECT_THAT(Choices(With(v1::Cluster::NATIVE, 0)), ElementsAre("conv/weight native"));
}

TEST_F(PlanCollectivesTest, AutoUsesNativeIfMeasuredFaster) {
  for (const std::string& choice : Choices(With(v1::Cluster::AUTO, 1))) {
    EXPECT_THAT(choice, ::testing::Not(HasSubstr("native")));
  }
  link_.samples = {{Algorithm::kNative, 8, 1 << 10, 2e-5}, {Algorithm::kNative, 8, 1 << 24, 2e-3}};
  const Plan plan = With(v1::Cluster::AUTO, 1);
  for (const std::string& choice : Choices(plan)) EXPECT_THAT(choice, HasSubstr("native"));
  const absl::Status rejected = CheckNative(plan, false);
  EXPECT_EQ(rejected.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(rejected.message()),
              ::testing::AllOf(HasSubstr("bucket 0"), HasSubstr("'native'"), HasSubstr("CPUs")));
  EXPECT_EQ(CheckNative(plan, true), absl::OkStatus());
  EXPECT_EQ(CheckNative(With(v1::Cluster::RING), false), absl::OkStatus());
  link_.samples = {{Algorithm::kNative, 8, 1 << 10, 1.0}, {Algorithm::kNative, 8, 1 << 24, 9.0}};
  for (const std::string& choice : Choices(With(v1::Cluster::AUTO, 1))) {
    EXPECT_THAT(choice, ::testing::Not(HasSubstr("native")));
  }
}

TEST_F(PlanCollectivesTest, PaperDependsOnKindOfLayer) {
  EXPECT_THAT(Choices(With(v1::Cluster::PAPER, 0)),
              ElementsAre("fc1/weight ring", "conv/weight butterfly"));
  const Plan layers = With(v1::Cluster::PAPER, 1);
  EXPECT_THAT(Choices(layers), ElementsAre("fc2/weight ring", "fc1/weight ring",
                                           "norm/scale butterfly", "conv/weight butterfly"));
  // The same without a measured link.
  link_ = {};
  EXPECT_THAT(Choices(With(v1::Cluster::PAPER)),
              ElementsAre("fc1/weight ring", "conv/weight butterfly"));
}

TEST_F(PlanCollectivesTest, AutoUsesCheapestPerBucket) {
  const Plan plan = With(v1::Cluster::AUTO, 1);
  ASSERT_EQ(plan.buckets.size(), 4U);
  for (const Bucket& bucket : plan.buckets) {
    const double chosen = CostOf(plan, index_, bucket, bucket.algorithm, link_).seconds();
    for (const Algorithm other :
         {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
      EXPECT_LE(chosen, CostOf(plan, index_, bucket, other, link_).seconds());
    }
  }
  EXPECT_EQ(PolicyName(v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED), "auto");
  EXPECT_EQ(Choices(With(v1::Cluster::COLLECTIVE_POLICY_UNSPECIFIED, 1)), Choices(plan));
}

TEST_F(PlanCollectivesTest, AutoIsNeverMoreExpensive) {
  for (const int ranks : {2, 3, 4, 6, 8, 16}) {
    Split(Mesh({{"data", ranks}}), {{"samples", {"data"}}});
    for (const double alpha : {1e-7, 1e-5, 1e-3}) {
      link_.alpha = alpha;
      for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
        EXPECT_LE(CommunicationSeconds(With(v1::Cluster::AUTO, 1), index_),
                  CommunicationSeconds(With(policy, 1), index_) * (1 + 1e-12))
            << ranks << " ranks, " << alpha << " s, " << PolicyName(policy);
      }
    }
  }
}

TEST_F(PlanCollectivesTest, AutoWithoutLinkIsRing) {
  link_ = {};
  const Plan plan = With(v1::Cluster::AUTO);
  EXPECT_THAT(Choices(plan), ElementsAre("conv/weight ring"));
  EXPECT_EQ(CommunicationSeconds(plan, index_), 0);
  EXPECT_EQ(CostOf(plan, index_, plan.buckets[0], Algorithm::kRing, link_).bytes,
            index_.size() * 4);
}

TEST_F(PlanCollectivesTest, LinkDeterminesBucketSize) {
  const Plan plan = With(v1::Cluster::RING);
  const int64_t max_elements = BucketElements(8, link_);
  ASSERT_GT(max_elements, 0);
  EXPECT_EQ(plan.link.alpha, kAlpha);
  EXPECT_EQ(plan.link_kind, v1::LinkProfile::TCP);
  EXPECT_EQ(Choices(plan), Choices(With(v1::Cluster::RING, max_elements)));
}

// Two ranks sum the bucket, six ranks gather it.
TEST_F(PlanCollectivesTest, ReduceScatterAndGatherOverTheirRanks) {
  Split(Mesh({{"data", 2}, {"model", 3}}), {{"samples", {"data"}}});
  const Plan plan = With(v1::Cluster::RING, 0);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_THAT(plan.buckets[0].replica_axes, ElementsAre("model"));
  const BucketCost cost = CostOf(plan, index_, plan.buckets[0], Algorithm::kRing, link_);
  const double bytes = cost.bytes;
  EXPECT_NEAR(cost.reduce_scatter, kAlpha + bytes / 2 * kBeta, 1e-12);
  EXPECT_NEAR(cost.all_gather, 5 * kAlpha + 5 * bytes / 6 * kBeta, 1e-12);
  EXPECT_DOUBLE_EQ(CommunicationSeconds(plan, index_), cost.seconds());
  // An all-reduce sums over the same two ranks.
  EXPECT_NEAR(AllReduceSeconds(plan, graph_, index_, v1::Cluster::RING), 2 * kAlpha + bytes * kBeta,
              1e-12);
  EXPECT_LE(AllReduceSeconds(plan, graph_, index_, v1::Cluster::AUTO),
            AllReduceSeconds(plan, graph_, index_, v1::Cluster::RING));
}

TEST_F(PlanCollectivesTest, OneRankIsFree) {
  Split(Mesh({{"data", 1}}), {});
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    const Plan plan = With(policy);
    EXPECT_EQ(CommunicationSeconds(plan, index_), 0);
    EXPECT_EQ(AllReduceSeconds(plan, graph_, index_, policy), 0);
  }
  EXPECT_THAT(Choices(With(v1::Cluster::AUTO)), ElementsAre("conv/weight ring"))
      << "all cost the same";
}

TEST_F(PlanCollectivesTest, ReplacesOldBuckets) {
  const std::string fresh = PlanToProto(With(v1::Cluster::AUTO), index_).SerializeAsString();
  plan_ = With(v1::Cluster::PAPER, 1);
  EXPECT_EQ(PlanToProto(With(v1::Cluster::AUTO), index_).SerializeAsString(), fresh);
}

TEST(PolicyNamesTest, RoundTrip) {
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    EXPECT_EQ(PolicyFromName(PolicyName(policy)), policy);
  }
  EXPECT_EQ(PolicyFromName("halving-doubling"), v1::Cluster::HALVING_DOUBLING);
  EXPECT_EQ(PolicyFromName("native"), v1::Cluster::NATIVE);
  EXPECT_EQ(PolicyName(v1::Cluster::NATIVE), "native");
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    EXPECT_NE(policy, v1::Cluster::NATIVE) << "depends on the device";
  }
  for (const char* const name : {"", "Ring", "halving_doubling", "tree"}) {
    EXPECT_EQ(PolicyFromName(name), std::nullopt) << name;
  }
}

TEST(LinkTextTest, LatencyBandwidthAndKind) {
  EXPECT_EQ(LinkText({.alpha = 5e-5, .beta = 8e-10}, v1::LinkProfile::TCP),
            "50.0 us a message, 1.25 GB/s, tcp");
  EXPECT_EQ(LinkText({.alpha = 5e-5, .beta = 8e-10}, v1::LinkProfile::KIND_UNSPECIFIED),
            "50.0 us a message, 1.25 GB/s");
  EXPECT_EQ(LinkText({}, v1::LinkProfile::TCP), "link not measured");
}

}  // namespace
}  // namespace cadre
