#include "tests/equivalence/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "tests/equivalence/plan_space.h"

namespace cadre {
namespace {

constexpr size_t kMaxMessages = 5;
// Limit of the number of plans for a mesh.
constexpr size_t kMaxPlansPerMesh = 1000000;

Graph GraphOf(const v1::RunSpec& spec) {
  auto graph = Graph::FromModel(spec.model());
  CHECK(graph.ok()) << graph.status();
  return *std::move(graph);
}

v1::Plan OneRankPlan(const Graph& graph, const ParameterIndex& index) {
  std::mt19937_64 unused;
  return PlanToProto(PlanSpace(graph, Mesh()).Random(unused), index);
}

}  // namespace

Comparison::Comparison(const v1::RunSpec& spec, KernelsFactory kernels)
    : Comparison(spec, std::move(kernels), nullptr) {}

Comparison::Comparison(const v1::RunSpec& spec, KernelsFactory one, GroupTrainer plans)
    : spec_(spec),
      graph_(GraphOf(spec)),
      index_(ParameterIndex::FromGraph(graph_)),
      host_(std::move(one)),
      train_(std::move(plans)) {
  // The error is relative to the change of the weights, so a small rate detects errors as well as a
  // large one. It prevents deep models with batch norm from amplifying rounding from step to step.
  training_.rate = 0.002F;
  training_.batches = RandomBatches(graph_, spec.batch_per_group(), spec.seed());
}

std::vector<Plan> Comparison::Plans(int ranks, size_t count, std::mt19937_64& random) const {
  const std::vector<Mesh> meshes = MeshesOf(ranks);
  std::vector<Plan> plans;
  for (const Mesh& mesh : meshes) {
    if (count > 0) break;
    std::vector<Plan> more = PlanSpace(graph_, mesh).CoverPairs(random, kMaxPlansPerMesh);
    plans.insert(plans.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  }
  for (size_t i = 0; i < count; ++i) {
    plans.push_back(PlanSpace(graph_, meshes[random() % meshes.size()]).Random(random));
  }
  return plans;
}

std::vector<Plan> Comparison::PlacedPlans(int ranks, size_t count, std::mt19937_64& random) const {
  const std::vector<Mesh> meshes = MeshesOf(ranks);
  std::vector<Plan> plans;
  for (size_t i = 0; i < count; ++i) {
    plans.push_back(PlanSpace(graph_, meshes[random() % meshes.size()]).RandomPlaced(random));
  }
  return plans;
}

absl::StatusOr<ComparisonResult> Comparison::Run(const std::vector<Plan>& plans,
                                                 const Progress& progress) {
  CADRE_ASSIGN_OR_RETURN(one_, host_.Train(spec_, OneRankPlan(graph_, index_), training_));
  ComparisonResult result;
  for (const Plan& plan : plans) {
    const v1::Plan proto = PlanToProto(plan, index_);
    const auto many =
        train_ != nullptr ? train_(spec_, proto, training_) : host_.Train(spec_, proto, training_);
    double error = 0;
    const std::string wrong =
        many.ok() ? FindDifference(*many, &error) : std::string(many.status().ToString());
    ++result.plans;
    result.worst_relative_error = std::max(result.worst_relative_error, error);
    if (!wrong.empty()) {
      ++result.failures;
      if (result.messages.size() < kMaxMessages) {
        result.messages.push_back(absl::StrCat(wrong, "\n", PrintPlan(plan, graph_, index_)));
      }
    }
    if (progress) progress(result.plans, plans.size(), result);
  }
  return result;
}

std::string Comparison::FindDifference(const GroupResult& many, double* error) const {
  const std::vector<float> initial = InitialWeights(index_, spec_.seed());
  *error = RelativeError(index_, initial, one_.weights, many.weights);
  if (!(*error < kTolerance)) return absl::StrCat("weights differ by ", *error);
  for (size_t s = 0; s < one_.losses.size(); ++s) {
    if (!(std::abs(one_.losses[s] - many.losses[s]) < kTolerance * (1 + one_.losses[s]))) {
      return absl::StrCat("step ", s, ": loss ", many.losses[s], " instead of ", one_.losses[s]);
    }
  }
  if (many.evaluation.samples != one_.evaluation.samples) {
    return absl::StrCat(many.evaluation.samples, " labels were counted instead of ",
                        one_.evaluation.samples);
  }
  if (!(std::abs(many.evaluation.loss - one_.evaluation.loss) <
        kTolerance * (1 + one_.evaluation.loss))) {
    return absl::StrCat("evaluation: loss ", many.evaluation.loss, " instead of ",
                        one_.evaluation.loss);
  }
  for (size_t rank = 0; rank < many.memory.size(); ++rank) {
    if (many.memory[rank].SerializeAsString() == many.planned_memory[rank].SerializeAsString()) {
      continue;
    }
    return absl::StrCat("rank ", rank, " holds ", many.memory[rank].ShortDebugString(),
                        "; planned was ", many.planned_memory[rank].ShortDebugString());
  }
  return "";
}

}  // namespace cadre
