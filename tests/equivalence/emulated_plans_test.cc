// Plans on devices equal one worker on the host: the CUDA back end, its flow and NCCL's transport
// on emulated devices. gpu_plans_test.cc does the same where there is a card.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/equivalence/comparison.h"
#include "tests/equivalence/emulated_back_end.h"
#include "tests/equivalence/random_model.h"
#include "tests/equivalence/small_models.h"
#include "tests/equivalence/zoo_folder.h"

namespace cadre {
namespace {

std::unique_ptr<Backend> HostKernelsOfOne() { return MakeCpuBackend(1); }

void ExpectEqual(Comparison& comparison, const std::vector<Plan>& plans) {
  const auto result = comparison.Run(plans);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plans, std::ssize(plans));
  for (const std::string& failure : result->messages) ADD_FAILURE() << failure;
  EXPECT_EQ(result->failures, 0);
}

class EmulatedPlans : public testing::TestWithParam<std::string> {
 protected:
  EmulatedGroup group_{EmulatedCuda::Mode::kInline};
};

TEST_P(EmulatedPlans, EqualOneRankOnTheHost) {
  const auto spec = SmallModel(ZooFolder(), GetParam());
  ASSERT_TRUE(spec.ok()) << spec.status();
  Comparison comparison(*spec, HostKernelsOfOne, group_.trainer());
  std::mt19937_64 random(11);
  std::vector<Plan> plans;
  for (const int ranks : {1, 2, 4}) {
    const auto drawn = comparison.Plans(ranks, 1, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  ExpectEqual(comparison, plans);
}

TEST_P(EmulatedPlans, EqualOneRankByNcclsOwnCollectives) {
  const auto spec = SmallModel(ZooFolder(), GetParam());
  ASSERT_TRUE(spec.ok()) << spec.status();
  Comparison comparison(*spec, HostKernelsOfOne, group_.trainer());
  std::mt19937_64 random(12);
  std::vector<Plan> plans = comparison.Plans(3, 1, random);
  for (Bucket& bucket : plans[0].buckets) bucket.algorithm = Algorithm::kNative;
  ExpectEqual(comparison, plans);
}

INSTANTIATE_TEST_SUITE_P(Zoo, EmulatedPlans, testing::ValuesIn(ZooNames()), [](const auto& info) {
  std::string name = info.param;
  name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
  return name;
});

// Every pair of splits of every two neighbours.
TEST(AllEmulatedPlans, OfSmallModelsEqualOneRank) {
  EmulatedGroup group(EmulatedCuda::Mode::kInline);
  for (const auto& [model, ranks] :
       std::vector<std::pair<std::string, int>>{{"lenet", 2}, {"mlp", 4}, {"gpt", 2}}) {
    const auto spec = SmallModel(ZooFolder(), model);
    ASSERT_TRUE(spec.ok()) << spec.status();
    Comparison comparison(*spec, HostKernelsOfOne, group.trainer());
    std::mt19937_64 random(7);
    ExpectEqual(comparison, comparison.Plans(ranks, 0, random));
  }
}

// Streams are threads here, and play at the same time: what lacks an event between streams shows.
TEST(AsynchronousPlans, OfRandomModelsEqualOneRank) {
  EmulatedGroup group(EmulatedCuda::Mode::kThreads);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const v1::RunSpec spec = RandomRun(seed);
    Comparison comparison(spec, HostKernelsOfOne, group.trainer());
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 4);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ranks << " ranks");
    ExpectEqual(comparison, comparison.Plans(ranks, 1, random));
  }
}

}  // namespace
}  // namespace cadre
