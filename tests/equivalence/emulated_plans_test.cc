// Training under plans on emulated devices has the results of one worker on the host. Tests the
// CUDA back end, its gradient flow and NCCL's transport. gpu_plans_test.cc does the same on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/nccl/nccl_transport.h"
#include "plan/search/planner.h"
#include "tests/emulator/emulated_cuda.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"
#include "tests/equivalence/pipeline_case.h"
#include "tests/equivalence/random_model.h"
#include "tests/equivalence/test_plans.h"

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

// Messages are performed by the threads of the ranks here, in the order in which they are enqueued,
// so ranks that enqueue them in different orders would wait forever.
TEST_P(EmulatedPlans, EqualOneRankIfPlaced) {
  std::mt19937_64 random(13);
  std::vector<Plan> plans;
  for (const int ranks : {2, 4}) {
    const auto drawn = comparison_.PlacedPlans(ranks, 1, random);
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
    ExpectEqual(comparison, comparison.PlacedPlans(1 + ranks, 1, random));
  }
}

class EmulatedPipelines : public testing::TestWithParam<PipelineCase> {
 protected:
  GroupResult Train(EmulatedCuda::Mode mode, v1::Cluster::Pipeline pipeline) {
    EmulatedGroup group(mode);
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_pipeline(pipeline);
    auto result =
        group.trainer()(spec, *MakePlan(spec, GetParam().ranks()),
                        {.steps = 3, .batches = RandomBatches(graph_, GetParam().batch, 5)});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  }

  const v1::RunSpec spec_ = SpecOf(GetParam());
  const Graph graph_ = *Graph::FromModel(spec_.model());
};

TEST_P(EmulatedPipelines, HaveTheSameBitsInEveryOrder) {
  const GroupResult in_turn = Train(EmulatedCuda::Mode::kInline, v1::Cluster::NO_PIPELINE);
  for (const auto mode : {EmulatedCuda::Mode::kInline, EmulatedCuda::Mode::kThreads}) {
    for (const auto pipeline :
         {v1::Cluster::ONE_FORWARD_ONE_BACKWARD, v1::Cluster::ALL_FORWARD_FIRST}) {
      SCOPED_TRACE(v1::Cluster::Pipeline_Name(pipeline));
      const GroupResult many = Train(mode, pipeline);
      EXPECT_EQ(many.losses, in_turn.losses);
      EXPECT_TRUE(many.weights == in_turn.weights);
      EXPECT_EQ(many.digest, in_turn.digest);
      EXPECT_EQ(many.bytes_sent, in_turn.bytes_sent);
      for (size_t rank = 0; rank < many.memory.size(); ++rank) {
        EXPECT_EQ(many.memory[rank].activations(), many.planned_memory[rank].activations());
      }
    }
  }
}

// Cases as on the host, where pipelines equal one worker.
INSTANTIATE_TEST_SUITE_P(
    Models, EmulatedPipelines,
    testing::Values(
        PipelineCase{.model = "resnet18", .stages = 3, .micro_batches = 4, .batch = 10},
        PipelineCase{.model = "alexnet",
                     .stages = 4,
                     .micro_batches = 3,
                     .batch = 6,
                     .more = "optimizer { clip_norm: 0.1 }"},
        PipelineCase{.model = "gpt", .stages = 2, .data = 2, .micro_batches = 5, .batch = 20},
        PipelineCase{.model = "lenet",
                     .stages = 4,
                     .micro_batches = 9,
                     .batch = 9,
                     .more = "optimizer { lars { momentum: 0.9 } } cluster { overlap: OFF }"},
        PipelineCase{.model = "gnmt", .stages = 2, .data = 2, .micro_batches = 3, .batch = 9}),
    [](const auto& info) { return TestName(info.param.model); });

// The host then waits between operations on all stages, and finds the layer.
TEST(EmulatedPipeline, NamesTheLayerThatIsNotFinite) {
  const PipelineCase tried{.model = "lenet", .stages = 3, .micro_batches = 4, .batch = 8};
  const v1::RunSpec spec = SpecOf(tried);
  const Graph graph = *Graph::FromModel(spec.model());
  const auto batches = [&](int64_t step) {
    WholeBatch batch = RandomBatches(graph, tried.batch, 5)(step);
    if (step == 1) batch.inputs[0] = std::numeric_limits<float>::quiet_NaN();
    return batch;
  };
  for (const auto mode : {EmulatedCuda::Mode::kInline, EmulatedCuda::Mode::kThreads}) {
    EmulatedGroup group(mode);
    const auto result =
        group.trainer()(spec, *MakePlan(spec, tried.ranks()), {.steps = 3, .batches = batches});
    EXPECT_THAT(std::string(result.status().message()),
                testing::HasSubstr(graph[0].name + "' on rank 0"));
  }
}

}  // namespace
}  // namespace cadre
