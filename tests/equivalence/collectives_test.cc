// Training has the same results with every collective algorithm, with and without overlap.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>

#include "plan/plan_collectives.h"
#include "plan/search/planner.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

constexpr int kSteps = 6;

// A bucket for every layer.
constexpr int64_t kBucketElements = 1;

struct Exchange {
  v1::Cluster::CollectivePolicy policy = v1::Cluster::RING;
  bool overlap = true;
};

struct Group {
  std::string name;
  int data = 1;
  int space = 1;
  int model = 1;
};

void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }

class Trained {
 public:
  explicit Trained(v1::RunSpec spec)
      : spec_(std::move(spec)),
        graph_(*Graph::FromModel(spec_.model())),
        index_(ParameterIndex::FromGraph(graph_)) {}

  GroupResult Train(const Group& group, const Exchange& exchange) {
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_model_ranks(group.model);
    spec.mutable_cluster()->set_space_ranks(group.space);
    spec.mutable_cluster()->set_overlap(exchange.overlap ? v1::Cluster::ON : v1::Cluster::OFF);
    const auto assigned = MakePlan(spec, group.data * group.space * group.model);
    EXPECT_TRUE(assigned.ok()) << assigned.status();
    auto plan = PlanFromProto(*assigned, graph_, index_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    *plan = WithCollectives(*std::move(plan), graph_, index_, exchange.policy, LinkProfile(),
                            v1::LinkProfile::KIND_UNSPECIFIED, kBucketElements);
    buckets_ = plan->buckets.size();
    auto result = ranks_.Train(
        spec, PlanToProto(*plan, index_),
        {.steps = kSteps, .batches = RandomBatches(graph_, spec.batch_per_group(), spec.seed())});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  }

  double Error(const GroupResult& a, const GroupResult& b) const {
    return RelativeError(index_, InitialWeights(index_, spec_.seed()), a.weights, b.weights);
  }
  size_t buckets() const { return buckets_; }

 private:
  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  size_t buckets_ = 0;
  Ranks ranks_{KernelsFactory(OneThreadCpu)};
};

enum class Update { kPlain, kClipped, kLars, kMicroBatches };

v1::RunSpec SpecFor(Update update) {
  v1::RunSpec spec = ZooSpec("lenet");
  spec.set_batch_per_group(12);
  switch (update) {
    case Update::kPlain:
      break;
    case Update::kClipped:
      spec.mutable_optimizer()->set_clip_norm(0.05F);
      break;
    case Update::kLars:
      spec.mutable_optimizer()->mutable_lars()->set_momentum(0.9F);
      break;
    case Update::kMicroBatches:
      spec.set_micro_batches(3);
      break;
  }
  return spec;
}

class CollectivePolicies : public testing::TestWithParam<std::tuple<Group, Update>> {};

TEST_P(CollectivePolicies, EqualOneRank) {
  const auto& [group, update] = GetParam();
  Trained trained(SpecFor(update));
  const GroupResult one = trained.Train({}, {});
  for (const v1::Cluster::CollectivePolicy policy :
       {v1::Cluster::RING, v1::Cluster::BUTTERFLY, v1::Cluster::HALVING_DOUBLING,
        v1::Cluster::PAPER}) {
    SCOPED_TRACE(PolicyName(policy));
    const GroupResult on = trained.Train(group, {policy, true});
    const GroupResult off = trained.Train(group, {policy, false});
    ASSERT_FALSE(HasFailure());
    EXPECT_GT(trained.buckets(), 2U);
    // The plan determines the order of sums, not the timing.
    EXPECT_EQ(on.digest, off.digest);
    EXPECT_EQ(on.losses, off.losses);
    EXPECT_LT(trained.Error(one, on), kTolerance);
    EXPECT_EQ(one.evaluation.correct, on.evaluation.correct);
  }
}

std::string UpdateName(Update update) {
  switch (update) {
    case Update::kPlain:
      return "Plain";
    case Update::kClipped:
      return "Clipped";
    case Update::kLars:
      return "Lars";
    case Update::kMicroBatches:
      return "MicroBatches";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivePolicies,
                         testing::Combine(testing::Values(Group{"Data2", 2}, Group{"Data3", 3},
                                                          Group{"Data4", 4},
                                                          Group{"Data2Model2", 2, 1, 2},
                                                          Group{"Data1Space2Model2", 1, 2, 2}),
                                          testing::Values(Update::kPlain, Update::kClipped,
                                                          Update::kLars, Update::kMicroBatches)),
                         [](const testing::TestParamInfo<std::tuple<Group, Update>>& info) {
                           return std::get<0>(info.param).name +
                                  UpdateName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace cadre
