#include "spec/plan_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "spec/text.h"
#include "tests/spec/testing.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A convolution, a batch norm, two products: 1,024 + 128 + 128 bytes in front, 640 KiB behind.
constexpr char kModel[] = R"(model {
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

class PlanCollectivesTest : public ::testing::Test {
 protected:
  PlanCollectivesTest()
      : graph_(*Graph::FromModel(testing::SpecOf(kModel).model())),
        index_(ParameterIndex::FromGraph(graph_)) {
    Split(Mesh({{"data", 8}}), {{"samples", {"data"}}});
    link_.alpha = kAlpha;
    link_.beta = kBeta;
  }

  // Every layer alike.
  void Split(Mesh mesh, const std::vector<IndexSplit>& splits) {
    plan_.mesh = std::move(mesh);
    plan_.layers.clear();
    for (const GraphLayer& layer : graph_.layers()) {
      auto layouts = LayOut(layer, plan_.mesh, splits);
      ASSERT_TRUE(layouts.ok()) << layouts.status();
      plan_.layers.push_back(*std::move(layouts));
    }
  }

  Plan With(v1::CollectivePolicy policy, std::optional<int64_t> bucket_elements = std::nullopt) {
    Plan plan = WithCollectives(plan_, graph_, index_, policy, link_, "tcp", bucket_elements);
    EXPECT_EQ(CheckPlan(plan, graph_, index_), absl::OkStatus()) << PolicyName(policy);
    return plan;
  }

  // "conv/weight ring", one per bucket, by the first of its parameters.
  std::vector<std::string> Said(const Plan& plan) const {
    std::vector<std::string> said;
    for (const Bucket& bucket : plan.buckets) {
      said.push_back(index_[bucket.parameters.front()].name + " " +
                     std::string(AlgorithmName(bucket.algorithm)));
    }
    return said;
  }

  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
  LinkProfile link_;
};

TEST_F(PlanCollectivesTest, PoliciesPrescribe) {
  EXPECT_THAT(Said(With(v1::RING, 0)), ElementsAre("conv/weight ring"));
  EXPECT_THAT(Said(With(v1::BUTTERFLY, 0)), ElementsAre("conv/weight butterfly"));
  EXPECT_THAT(Said(With(v1::HALVING_DOUBLING, 0)), ElementsAre("conv/weight halving-doubling"));
  EXPECT_THAT(Said(With(v1::NATIVE, 0)), ElementsAre("conv/weight native"));
}

// Only where samples show that the ranks have it, and only where it costs least.
TEST_F(PlanCollectivesTest, AutoTakesNativeWhereItWasMeasuredToBeFaster) {
  for (const std::string& said : Said(With(v1::AUTO, 1))) {
    EXPECT_THAT(said, ::testing::Not(HasSubstr("native")));
  }
  link_.samples = {{Algorithm::kNative, 8, 1 << 10, 2e-5}, {Algorithm::kNative, 8, 1 << 24, 2e-3}};
  const Plan plan = With(v1::AUTO, 1);
  for (const std::string& said : Said(plan)) EXPECT_THAT(said, HasSubstr("native"));
  const absl::Status refused = CheckNative(plan, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(HasSubstr("bucket 0"), HasSubstr("'native'"), HasSubstr("CPUs")));
  EXPECT_EQ(CheckNative(plan, true), absl::OkStatus());
  EXPECT_EQ(CheckNative(With(v1::RING), false), absl::OkStatus());
  link_.samples = {{Algorithm::kNative, 8, 1 << 10, 1.0}, {Algorithm::kNative, 8, 1 << 24, 9.0}};
  for (const std::string& said : Said(With(v1::AUTO, 1))) {
    EXPECT_THAT(said, ::testing::Not(HasSubstr("native")));
  }
}

TEST_F(PlanCollectivesTest, ThePaperGoesByTheKindOfLayer) {
  EXPECT_THAT(Said(With(v1::PAPER, 0)), ElementsAre("fc1/weight ring", "conv/weight butterfly"));
  const Plan layers = With(v1::PAPER, 1);
  EXPECT_THAT(Said(layers), ElementsAre("fc2/weight ring", "fc1/weight ring",
                                        "norm/scale butterfly", "conv/weight butterfly"));
  // What is prescribed is so without a measurement too.
  link_ = {};
  EXPECT_THAT(Said(With(v1::PAPER)), ElementsAre("fc1/weight ring", "conv/weight butterfly"));
}

TEST_F(PlanCollectivesTest, AutoTakesTheCheapestOfEveryBucket) {
  const Plan plan = With(v1::AUTO, 1);
  ASSERT_EQ(plan.buckets.size(), 4U);
  for (const Bucket& bucket : plan.buckets) {
    const double chosen = CostOf(plan, index_, bucket, bucket.algorithm, link_).seconds();
    for (const Algorithm other :
         {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
      EXPECT_LE(chosen, CostOf(plan, index_, bucket, other, link_).seconds());
    }
  }
  EXPECT_EQ(PolicyName(v1::COLLECTIVE_POLICY_UNSPECIFIED), "auto");
  EXPECT_EQ(Said(With(v1::COLLECTIVE_POLICY_UNSPECIFIED, 1)), Said(plan));
}

TEST_F(PlanCollectivesTest, AutoIsNeverDearerThanAPolicyWithTheSameBuckets) {
  for (const int ranks : {2, 3, 4, 6, 8, 16}) {
    Split(Mesh({{"data", ranks}}), {{"samples", {"data"}}});
    for (const double alpha : {1e-7, 1e-5, 1e-3}) {
      link_.alpha = alpha;
      for (const v1::CollectivePolicy policy : AllPolicies()) {
        EXPECT_LE(CommunicationSeconds(With(v1::AUTO, 1), index_),
                  CommunicationSeconds(With(policy, 1), index_) * (1 + 1e-12))
            << ranks << " ranks, " << alpha << " s, " << PolicyName(policy);
      }
    }
  }
}

TEST_F(PlanCollectivesTest, WithoutALinkAutoIsRingsOfTheDefaultSize) {
  link_ = {};
  const Plan plan = With(v1::AUTO);
  EXPECT_THAT(Said(plan), ElementsAre("conv/weight ring"));
  EXPECT_EQ(CommunicationSeconds(plan, index_), 0);
  EXPECT_EQ(CostOf(plan, index_, plan.buckets[0], Algorithm::kRing, link_).bytes,
            index_.size() * 4);
}

TEST_F(PlanCollectivesTest, BucketsAreOfTheSizeThatTheLinkAsksFor) {
  const Plan plan = With(v1::RING);
  const int64_t most = BucketElements(8, link_);
  ASSERT_GT(most, 0);
  EXPECT_EQ(plan.link.alpha, kAlpha);
  EXPECT_EQ(plan.link_kind, "tcp");
  EXPECT_EQ(Said(plan), Said(With(v1::RING, most)));
}

// Two ranks sum a bucket, six gather it: each half is paid by its own ranks.
TEST_F(PlanCollectivesTest, GradientsAreSummedByTheRanksThatDifferAndGatheredByAll) {
  Split(Mesh({{"data", 2}, {"model", 3}}), {{"samples", {"data"}}});
  const Plan plan = With(v1::RING, 0);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_THAT(plan.buckets[0].same, ElementsAre("model"));
  const BucketCost cost = CostOf(plan, index_, plan.buckets[0], Algorithm::kRing, link_);
  const auto bytes = static_cast<double>(cost.bytes);
  EXPECT_NEAR(cost.reduce_scatter, kAlpha + bytes / 2 * kBeta, 1e-12);
  EXPECT_NEAR(cost.all_gather, 5 * kAlpha + 5 * bytes / 6 * kBeta, 1e-12);
  EXPECT_DOUBLE_EQ(CommunicationSeconds(plan, index_), cost.seconds());
}

TEST_F(PlanCollectivesTest, OneRankCommunicatesNothing) {
  Split(Mesh({{"data", 1}}), {});
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    const Plan plan = With(policy);
    EXPECT_EQ(CommunicationSeconds(plan, index_), 0);
    EXPECT_EQ(AllReduceSeconds(plan, graph_, index_, policy), 0);
  }
  EXPECT_THAT(Said(With(v1::AUTO)), ElementsAre("conv/weight ring")) << "it is all the same";
}

TEST_F(PlanCollectivesTest, EqualArgumentsGiveEqualPlans) {
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    EXPECT_EQ(PlanToProto(With(policy), index_).SerializeAsString(),
              PlanToProto(With(policy), index_).SerializeAsString());
  }
}

// Choosing again, on a plan that was chosen for another link, forgets the first choice.
TEST_F(PlanCollectivesTest, TheOldBucketsLeaveNoTrace) {
  const std::string fresh = PlanToProto(With(v1::AUTO), index_).SerializeAsString();
  plan_ = With(v1::PAPER, 1);
  EXPECT_EQ(PlanToProto(With(v1::AUTO), index_).SerializeAsString(), fresh);
}

TEST(PolicyNamesTest, ReadBackAsWritten) {
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    EXPECT_EQ(PolicyFromName(PolicyName(policy)), policy);
  }
  EXPECT_EQ(PolicyFromName("halving-doubling"), v1::HALVING_DOUBLING);
  EXPECT_EQ(PolicyFromName("native"), v1::NATIVE);
  EXPECT_EQ(PolicyName(v1::NATIVE), "native");
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    EXPECT_NE(policy, v1::NATIVE) << "not every device has it";
  }
  for (const char* const name : {"", "Ring", "halving_doubling", "tree"}) {
    EXPECT_EQ(PolicyFromName(name), std::nullopt) << name;
  }
}

TEST(LinkTextTest, SaysDelayRateAndKind) {
  EXPECT_EQ(LinkText({.alpha = 5e-5, .beta = 8e-10}, "tcp"), "50.0 us a message, 1.25 GB/s, tcp");
  EXPECT_EQ(LinkText({.alpha = 5e-5, .beta = 8e-10}, ""), "50.0 us a message, 1.25 GB/s");
  EXPECT_EQ(LinkText({}, "tcp"), "link not measured");
}

// --- AlexNet on the link of 8 ranks over 10 Gbit/s Ethernet, layer by layer ---

class AlexNetTest : public ::testing::Test {
 protected:
  AlexNetTest()
      : graph_(*Graph::FromModel(
            ReadRunSpec(testing::ZooFolder() + "/alexnet.textproto")->spec.model())),
        index_(ParameterIndex::FromGraph(graph_)) {
    plan_.mesh = Mesh({{"data", 8}});
    for (const GraphLayer& layer : graph_.layers()) {
      plan_.layers.push_back(*LayOut(layer, plan_.mesh, {{"samples", {"data"}}}));
    }
  }

  Plan With(v1::CollectivePolicy policy) {
    return WithCollectives(plan_, graph_, index_, policy, {.alpha = kAlpha, .beta = kBeta}, "given",
                           1);
  }

  const Graph graph_;
  const ParameterIndex index_;
  Plan plan_;
};

TEST_F(AlexNetTest, SizeBeatsTheKindOfLayer) {
  const Plan chosen = With(v1::AUTO);
  ASSERT_EQ(chosen.buckets.size(), 8U);
  const double own = CommunicationSeconds(chosen, index_);
  EXPECT_LT(own, CommunicationSeconds(With(v1::PAPER), index_));
  EXPECT_LT(own, CommunicationSeconds(With(v1::BUTTERFLY), index_));
  EXPECT_LT(own, CommunicationSeconds(With(v1::RING), index_));
  EXPECT_LE(own, CommunicationSeconds(With(v1::HALVING_DOUBLING), index_) * (1 + 1e-12));
}

TEST_F(AlexNetTest, SoItDoesWhereEveryLayerIsAllReduced) {
  const Plan layers = With(v1::AUTO);
  const double own = AllReduceSeconds(layers, graph_, index_, v1::AUTO);
  EXPECT_LT(own, AllReduceSeconds(layers, graph_, index_, v1::PAPER));
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    EXPECT_LE(own, AllReduceSeconds(layers, graph_, index_, policy)) << PolicyName(policy);
  }
  // The butterfly's share of the small first layer, the rest by halving and doubling.
  EXPECT_LT(own, AllReduceSeconds(layers, graph_, index_, v1::HALVING_DOUBLING));
}

}  // namespace
}  // namespace cadre
