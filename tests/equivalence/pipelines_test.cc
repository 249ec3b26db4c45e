// A group whose stages work on different micro-batches at the same time computes the same bits as
// one that computes one micro-batch after the other, and the same as one worker.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plan/pipeline.h"
#include "plan/recomputation.h"
#include "plan/search/planner.h"
#include "tests/equivalence/pipeline_case.h"
#include "tests/equivalence/test_plans.h"

namespace cadre {
namespace {

bool HasBatchNorm(const Graph& graph) {
  return std::ranges::any_of(
      graph.layers(), [](const GraphLayer& layer) { return layer.kind == LayerKind::kBatchNorm; });
}

class Pipelines : public testing::TestWithParam<PipelineCase> {
 protected:
  GroupResult Train(const v1::RunSpec& spec, const v1::Plan& plan) {
    static auto* const ranks = new Ranks(KernelsFactory(OneThreadCpu));
    auto result = ranks->Train(
        spec, plan,
        {.steps = 4, .batches = RandomBatches(graph_, spec.batch_per_group(), spec.seed())});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : GroupResult();
  }
  GroupResult Train(v1::Cluster::Pipeline pipeline) {
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_pipeline(pipeline);
    return Train(spec, plan_);
  }

  const v1::RunSpec spec_ = SpecOf(GetParam());
  const Graph graph_ = *Graph::FromModel(spec_.model());
  const ParameterIndex index_ = ParameterIndex::FromGraph(graph_);
  const v1::Plan plan_ = *MakePlan(spec_, GetParam().ranks());
};

TEST_P(Pipelines, HaveTheSameBitsInEveryOrder) {
  const PassOrder order = PassOrderOf(v1::Cluster::PIPELINE_UNSPECIFIED, GetParam().micro_batches,
                                      graph_, *PlanFromProto(plan_, graph_, index_));
  ASSERT_EQ(order.stages(), GetParam().stages) << "the plan is not a pipeline";

  const GroupResult in_turn = Train(v1::Cluster::NO_PIPELINE);
  for (const auto pipeline :
       {v1::Cluster::ONE_FORWARD_ONE_BACKWARD, v1::Cluster::ALL_FORWARD_FIRST}) {
    SCOPED_TRACE(v1::Cluster::Pipeline_Name(pipeline));
    const GroupResult many = Train(pipeline);
    EXPECT_EQ(many.losses, in_turn.losses);
    EXPECT_TRUE(many.weights == in_turn.weights);
    EXPECT_EQ(many.digest, in_turn.digest);
    EXPECT_EQ(many.evaluation.correct, in_turn.evaluation.correct);
    EXPECT_EQ(many.bytes_sent, in_turn.bytes_sent);
  }

  v1::RunSpec alone = spec_;
  alone.clear_cluster();
  // The statistics of a batch norm are those of a micro-batch; all else is equal without them.
  if (!HasBatchNorm(graph_)) alone.clear_micro_batches();
  const GroupResult one = Train(alone, *MakePlan(alone, 1));
  EXPECT_LT(
      RelativeError(index_, InitialWeights(index_, spec_.seed()), one.weights, in_turn.weights),
      kTolerance);
}

TEST_P(Pipelines, UseThePlannedMemory) {
  const int stages = GetParam().stages;
  const int micro_batches = GetParam().micro_batches;
  const GroupResult in_turn = Train(v1::Cluster::NO_PIPELINE);
  const GroupResult alternating = Train(v1::Cluster::ONE_FORWARD_ONE_BACKWARD);
  const GroupResult forward_first = Train(v1::Cluster::ALL_FORWARD_FIRST);
  for (int rank = 0; rank < stages * GetParam().data; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    for (const GroupResult* result : {&in_turn, &alternating, &forward_first}) {
      EXPECT_EQ(result->memory[rank].activations(), result->planned_memory[rank].activations());
    }
    const int stage = rank % stages;
    const uint64_t one = in_turn.memory[rank].activations();
    const int ahead = std::min(micro_batches, stages - stage);
    const uint64_t of_alternating = alternating.memory[rank].activations();
    EXPECT_LE(of_alternating, one * ahead);
    EXPECT_LE(forward_first.memory[rank].activations(), one * micro_batches);
    EXPECT_GE(forward_first.memory[rank].activations(), of_alternating);
  }
}

TEST_P(Pipelines, RecomputationGivesTheSameBits) {
  Plan plan = *PlanFromProto(plan_, graph_, index_);
  plan.recomputed = RecomputationBlocks(graph_);
  ASSERT_FALSE(plan.recomputed.empty());
  for (const auto pipeline :
       {v1::Cluster::ONE_FORWARD_ONE_BACKWARD, v1::Cluster::ALL_FORWARD_FIRST}) {
    SCOPED_TRACE(v1::Cluster::Pipeline_Name(pipeline));
    const GroupResult kept = Train(pipeline);
    v1::RunSpec spec = spec_;
    spec.mutable_cluster()->set_pipeline(pipeline);
    const GroupResult again = Train(spec, PlanToProto(plan, index_));
    EXPECT_EQ(again.losses, kept.losses);
    EXPECT_TRUE(again.weights == kept.weights);
    EXPECT_EQ(again.digest, kept.digest);
    EXPECT_EQ(again.bytes_sent, kept.bytes_sent) << "stages send nothing again";
    uint64_t memory = 0, memory_again = 0;
    for (size_t rank = 0; rank < again.memory.size(); ++rank) {
      EXPECT_EQ(again.memory[rank].activations(), again.planned_memory[rank].activations());
      memory += kept.memory[rank].activations();
      memory_again += again.memory[rank].activations();
    }
    if (graph_.size() > 16) {
      EXPECT_LT(memory_again, memory) << "several blocks on each stage";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Pipelines,
    testing::Values(
        // Batch norm; residual connections between stages; micro-batches of two sizes.
        PipelineCase{.model = "resnet18", .stages = 3, .micro_batches = 4, .batch = 10},
        // Dropout, more stages than micro-batches, and updates that wait for norms over all stages.
        PipelineCase{.model = "alexnet",
                     .stages = 4,
                     .micro_batches = 3,
                     .batch = 6,
                     .more = "optimizer { clip_norm: 0.1 }"},
        // Branches, some of which remain on an earlier stage.
        PipelineCase{.model = "inception-v3", .stages = 2, .micro_batches = 3, .batch = 3},
        // Tokens, and data parallelism inside the stages.
        PipelineCase{.model = "gpt", .stages = 2, .data = 2, .micro_batches = 5, .batch = 20},
        // Attention, on all stages, reads the tokens.
        PipelineCase{
            .model = "gpt-padded", .stages = 3, .data = 2, .micro_batches = 4, .batch = 10},
        // Attention of the last stage reads the encoder's outputs, of an earlier stage.
        PipelineCase{.model = "gnmt", .stages = 2, .data = 2, .micro_batches = 3, .batch = 9},
        // The last stage samples the classes, the same ones in all micro-batches.
        PipelineCase{.model = "biglstm", .stages = 2, .data = 2, .micro_batches = 3, .batch = 9},
        PipelineCase{.model = "lenet", .stages = 4, .micro_batches = 9, .batch = 9}),
    [](const auto& info) { return TestName(info.param.model); });

}  // namespace
}  // namespace cadre
