// The order of passes in a pipeline (Huang et al., GPipe, NeurIPS 2019; Narayanan et al.,
// PipeDream-Flush, ICML 2021).
//
// The layers of a model are divided into S stages, the batch of a step into m micro-batches. A
// stage can compute the forward pass of a micro-batch when the stages before it have, and the
// backward pass when the stages after it have. So all stages work at the same time, except while
// the first micro-batches arrive at the last stage and the last gradients return to the first one:
// of m + S - 1 passes in each direction a stage idles for S - 1. Weights change at the end of the
// step only, and gradients are added in the order of the micro-batches, so the result has the same
// bits as without a pipeline.
//
//   ALL_FORWARD_FIRST (GPipe)   every stage plays all forward passes, then all backward passes, and
//                               keeps the activations of m micro-batches
//   ONE_FORWARD_ONE_BACKWARD    stage s begins with min(m, S - s) forward passes, then alternates
//                               between backward and forward passes, and keeps the activations of
//                               min(m, S - s) micro-batches
//
//   S = 2, m = 4    stage 0   F0 F1 .. B0 F2 B1 F3 B2 .. B3
//                   stage 1   .. F0 B0 F1 B1 F2 B2 F3 B3
//
// Why ranks cannot deadlock. plan/tape.cc shows it for ranks whose operations are a subsequence of
// one sequence in which sends precede their receives, if messages are sent in the order of their
// receives. Number constructs such a sequence of passes, and ranks number their messages by it
// (MessageNumber). A rank also waits where it reuses memory from which it sends: before the
// backward pass of a micro-batch for what it has sent in the forward pass, and before the forward
// pass of another micro-batch in the same memory for what it has sent in the backward pass. The
// first wait is for receives of earlier positions: the backward pass follows those of later stages,
// which follow their forward passes. For the second, Number places the forward pass after the
// backward passes of the stages that receive these gradients. That is possible. Let w = S - s be
// the number of micro-batches in flight at stage s, so that F(j + w) of stage s follows B(j) of
// earlier stages. An earlier stage t has S - t > w in flight, so its own F(j + w) precedes its
// B(j), and the gradient of micro-batch j does not depend on any F(j + w) of a later stage.
//
// Limits. The first message of a pass arrives during the pass before it only if the passes use
// different memory; that of a forward pass which follows the backward pass in the same memory is
// received when it begins. A stage that has sent the gradient of a micro-batch begins the forward
// pass that reuses its memory when the gradient has been received; this exposes the time of that
// message if links are slow. Stages are not interleaved (no rank has several).
#include "plan/pipeline.h"

#include <algorithm>

#include "glog/logging.h"

namespace cadre {

PassOrder::PassOrder(v1::Cluster::Pipeline pipeline, int stages, int micro_batches, int reach)
    : micro_batches_(micro_batches) {
  CHECK(stages > 0 && micro_batches > 0);
  const bool all_forward_first = stages > 1 && pipeline == v1::Cluster::ALL_FORWARD_FIRST;
  for (int stage = 0; stage < stages; ++stage) {
    const int ahead = all_forward_first ? micro_batches : std::min(micro_batches, stages - stage);
    std::vector<Pass> passes;
    for (int i = 0; i < ahead; ++i) passes.push_back({.micro_batch = i});
    for (int i = 0; i < micro_batches; ++i) {
      passes.push_back({.backward = true, .micro_batch = i});
      if (i + ahead < micro_batches) passes.push_back({.micro_batch = i + ahead});
    }
    in_flight_.push_back(ahead);
    passes_.push_back(std::move(passes));
  }
  Number(reach);
}

// Plays the passes in rounds: in each, every stage plays at most one, in the order of the stages.
void PassOrder::Number(int reach) {
  constexpr int kNever = -1;
  positions_.assign(stages(), std::vector<int>(2 * micro_batches_, kNever));
  std::vector<size_t> next(stages(), 0);
  int position = 0;
  int round_begin = 0;
  // Whether the pass was played before `end`.
  const auto played = [this](int stage, Pass pass, int end) {
    const int at = Position(stage, pass);
    return at != kNever && at < end;
  };
  const auto ready = [&](int stage, Pass pass) {
    if (pass.backward) return stage + 1 == stages() || played(stage + 1, pass, round_begin);
    if (stage > 0 && !played(stage - 1, pass, round_begin)) return false;
    const int reused = pass.micro_batch - InFlight(stage);
    for (int to = std::max(0, stage - reach); to < stage && reused >= 0; ++to) {
      if (!played(to, {.backward = true, .micro_batch = reused}, position)) return false;
    }
    return true;
  };
  while (position < Positions()) {
    round_begin = position;
    for (int stage = 0; stage < stages(); ++stage) {
      if (next[stage] == passes_[stage].size()) continue;
      const Pass pass = passes_[stage][next[stage]];
      if (!ready(stage, pass)) continue;
      positions_[stage][2 * pass.micro_batch + (pass.backward ? 1 : 0)] = position++;
      ++next[stage];
    }
    CHECK_GT(position, round_begin) << "stages wait for one another";
  }
}

int StageOf(const LayerLayouts& layouts) {
  const auto found = std::find_if(layouts.at.begin(), layouts.at.end(),
                                  [](const AxisCoordinate& at) { return at.axis == kStageAxis; });
  return found == layouts.at.end() ? 0 : found->coordinate;
}

int StageIn(const PassOrder& order, const Mesh& mesh, int rank) {
  return order.stages() == 1 ? 0 : mesh.Coordinate(rank, kStageAxis);
}

namespace {

bool HasStage(const LayerLayouts& layouts) {
  return std::any_of(layouts.at.begin(), layouts.at.end(),
                     [](const AxisCoordinate& at) { return at.axis == kStageAxis; });
}

bool IsSum(const Layout& layout, const Mesh& mesh) { return mesh.Size(layout.partial_sum) > 1; }

// Whether a value that layer `l` reads, and its gradient, pass between stages by sends and receives
// alone. A sum over ranks may need an exchange among ranks of both stages, and so may the model's
// input, unless the ranks that read it have loaded the samples that they need.
bool IsPassedOn(const Graph& graph, const Plan& plan, int l, int input) {
  const int producer = graph[l].inputs[input];
  if (producer == Graph::kInput) {
    return InputLayout(graph, plan).axes(0) == plan.layers[l].inputs[input].axes(0);
  }
  const int from = StageOf(plan.layers[producer]);
  const int to = StageOf(plan.layers[l]);
  if (from == to) return true;
  return from < to && !IsSum(plan.layers[producer].output, plan.mesh) &&
         !IsSum(plan.layers[l].input_gradients[input], plan.mesh);
}

// The number of stages of a plan that can be a pipeline; otherwise 1.
int PipelinedStages(const Graph& graph, const Plan& plan) {
  for (int l = 0; l < graph.size(); ++l) {
    if (!HasStage(plan.layers[l])) return 1;
    for (int i = 0; i < std::ssize(graph[l].inputs); ++i) {
      if (!IsPassedOn(graph, plan, l, i)) return 1;
    }
  }
  return plan.mesh.Size(kStageAxis);
}

int GradientReach(const Graph& graph, const Plan& plan) {
  int reach = 0;
  for (int l = 0; l < graph.size(); ++l) {
    for (const int producer : graph[l].inputs) {
      if (producer == Graph::kInput) continue;
      reach = std::max(reach, StageOf(plan.layers[l]) - StageOf(plan.layers[producer]));
    }
  }
  return reach;
}

}  // namespace

uint32_t MessageNumber(const PassOrder& order, const Graph& graph, const Plan& plan,
                       const TapeOp& op, Pass pass, uint32_t orders) {
  const int receiver = pass.backward ? graph[op.layer].inputs[op.input] : op.layer;
  const int stage = order.stages() == 1 ? 0 : StageOf(plan.layers[receiver]);
  return order.Position(stage, pass) * orders + op.order;
}

PassOrder PassOrderOf(v1::Cluster::Pipeline pipeline, int micro_batches, const Graph& graph,
                      const Plan& plan) {
  const bool pipelines = micro_batches > 1 && pipeline != v1::Cluster::NO_PIPELINE;
  const int stages = pipelines ? PipelinedStages(graph, plan) : 1;
  if (stages == 1) return PassOrder(micro_batches);
  return {pipeline, stages, micro_batches, GradientReach(graph, plan)};
}

}  // namespace cadre
