// Training under plans on emulated devices has the results of one worker on the host. Tests the
// CUDA back end, its gradient flow and NCCL's transport. gpu_plans_test.cc does the same on a GPU.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/equivalence/random_model.h"
#include "tests/equivalence/test_plans.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace cadre {
namespace {

class EmulatedBackEnd final : public RankBackEnd {
 public:
  EmulatedBackEnd(EmulatedCuda::Mode mode, const NcclApi& nccl)
      : rank_(MakeEmulatedRank(mode)), nccl_(nccl) {}

  Backend& kernels() override { return *rank_.kernels; }
  absl::StatusOr<std::unique_ptr<Transport>> ConnectData(Transport& control) override {
    return MakeNcclTransport(nccl_, *rank_.device, *rank_.kernels, control, {});
  }

 private:
  const EmulatedRank rank_;
  const NcclApi& nccl_;
};

// Ranks on emulated devices with a fake NCCL: a group on GPUs without the hardware.
class EmulatedGroup {
 public:
  explicit EmulatedGroup(EmulatedCuda::Mode mode)
      : ranks_(BackEndFactory([this, mode](int /*rank*/) {
          return std::make_unique<EmulatedBackEnd>(mode, nccl_.api());
        })) {}

  // Borrows the object.
  GroupTrainer trainer() {
    return [this](const v1::RunSpec& spec, const v1::Plan& plan, const Training& training) {
      v1::RunSpec on_devices = spec;
      on_devices.mutable_cluster()->set_device(v1::Cluster::CUDA);
      return ranks_.Train(on_devices, plan, training);
    };
  }

 private:
  FakeNccl nccl_;
  Ranks ranks_;
};

class EmulatedPlans : public testing::TestWithParam<std::string> {
 protected:
  EmulatedGroup group_{EmulatedCuda::Mode::kInline};
  Comparison comparison_{ZooSpec(GetParam()), OneThreadCpu, group_.trainer()};
};

TEST_P(EmulatedPlans, EqualOneRankOnTheHost) {
  std::mt19937_64 random(11);
  std::vector<Plan> plans;
  for (const int ranks : {1, 2, 4}) {
    const auto drawn = comparison_.Plans(ranks, 1, random);
    plans.insert(plans.end(), drawn.begin(), drawn.end());
  }
  ExpectEqual(comparison_, plans);
}

TEST_P(EmulatedPlans, EqualOneRankWithNativeCollectives) {
  std::mt19937_64 random(12);
  std::vector<Plan> plans = comparison_.Plans(3, 1, random);
  for (Bucket& bucket : plans[0].buckets) bucket.algorithm = Algorithm::kNative;
  ExpectEqual(comparison_, plans);
}

INSTANTIATE_TEST_SUITE_P(Zoo, EmulatedPlans, testing::ValuesIn(SmallModelNames()),
                         [](const auto& info) { return TestName(info.param); });

// Every pair of splits of every two neighbors.
TEST(AllEmulatedPlans, OfSmallModelsEqualOneRank) {
  EmulatedGroup group(EmulatedCuda::Mode::kInline);
  for (const auto& [model, ranks] :
       std::vector<std::pair<std::string, int>>{{"lenet", 2}, {"mlp", 4}, {"gpt", 2}}) {
    Comparison comparison(ZooSpec(model), OneThreadCpu, group.trainer());
    std::mt19937_64 random(7);
    ExpectEqual(comparison, comparison.Plans(ranks, 0, random));
  }
}

// Streams are threads here and run concurrently, so a missing event changes the result.
TEST(AsynchronousPlans, OfRandomModelsEqualOneRank) {
  EmulatedGroup group(EmulatedCuda::Mode::kThreads);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Comparison comparison(RandomRun(seed), OneThreadCpu, group.trainer());
    std::mt19937_64 random(seed);
    const int ranks = 1 + random() % 4;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ranks << " ranks");
    ExpectEqual(comparison, comparison.Plans(ranks, 1, random));
  }
}

}  // namespace
}  // namespace cadre
