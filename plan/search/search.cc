// Searches for the plan with the fastest predicted step.
//
// 1. For one mesh, the serial seconds of a plan are a sum: of each layer's cost as it is split, and
//    of the moves between layers that are split differently (search_mesh.h). The minimum sum is
//    found by elimination (elimination.h), exactly unless a term would have more than max_states
//    entries. A memory limit is a limit on a second sum. This is the layer-wise parallelism of
//    OptCNN (Jia, Lin, Qi, Aiken 2018), with the layouts and strategies of Gholami et al. 2018 and
//    Joo and Youn 2021 among its options.
// 2. Overlapped time is not a sum. The minimisation is therefore repeated with smaller and smaller
//    weights of gradient communication (kWeights). The resulting plans are predicted as a whole
//    (prediction.h): first the best plan of each weight, then the second best, and so on.
// 3. The best buckets are searched for the fastest few plans.
// 4. Local search: one layer of the fastest plan is forced to another option, all others are
//    minimised again, and the result is predicted. This is repeated until no change of a layer
//    reduces the time or max_improvements is used up.
//
// Pruning: meshes are visited in the order of the sum of their layers' minimum costs without moves,
// which is a lower bound. A mesh is skipped for a weight if its bound is above kSlack times the
// best sum so far; the slack is needed because a plan with a larger sum may overlap better.
//
// Plans that place layers are predicted, too: pipelines, if the step has several micro-batches
// (staged_plans.h), and layers on ranks, if branches of the model can be computed concurrently
// (placed_plans.h).
//
// Where memory excludes plans, the search is repeated with plans that recompute all blocks of
// layers (plan/recomputation.h), whose memory is then not a sum but estimated by one; of the plans
// that are found, the exact memory decides how many blocks they recompute (recomputing_search.h).
//
// Under AUTO the search is repeated under every fixed policy, and with pins it is repeated without
// them, so that no policy and no pin is ever faster than the answer that is reported.
//
// Limits. `exact` and `gap` refer to the sums of the considered options (layer_options.h), not to
// overlapped time. Ties are broken by rule, so equal problems give equal plans.
#include "plan/search/search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/ops/operation.h"
#include "plan/norm_statistics.h"
#include "plan/plan_collectives.h"
#include "plan/search/elimination.h"
#include "plan/search/layer_bytes.h"
#include "plan/search/placed_plans.h"
#include "plan/search/recomputing_search.h"
#include "plan/search/search_mesh.h"
#include "plan/search/staged_plans.h"

namespace cadre {
namespace {

constexpr double kInfiniteSeconds = std::numeric_limits<double>::infinity();

// Weights of the communication thread's seconds: from 1 (compute hides no communication) to nearly
// 0 (compute hides all of it; among equal plans the one with less communication is still
// preferred).
constexpr double kWeights[] = {1, 0.5, 0.2, 0.01};

// The weights if there are many meshes.
constexpr double kFewWeights[] = {1, 0.05};
constexpr size_t kManyMeshes = 150;

// With overlap, a plan whose sum is up to this factor above the minimum may still be the fastest.
constexpr double kSlack = 1.05;
constexpr double kManyMeshesSlack = 1.0;

// Cost of options that must not be chosen.
constexpr double kForbidden = 1e15;

// Computing so many states takes about as long as one prediction.
constexpr int64_t kStatesPerImprovement = 20'000;

// Under AUTO the other policies are searched too, as long as all searches together have at most so
// many states. No policy's plan is then faster than the result.
constexpr int64_t kMaxPolicyStates = 500'000;
// Number of other plans that are reported.
constexpr int kMaxOthers = 5;

// Among equally good plans, the one whose mesh has the fewest axes, then the most ranks along data,
// is preferred.
bool HasPreferredMesh(const Mesh& a, const Mesh& b) {
  const auto key = [](const Mesh& mesh) {
    const int axes = std::count_if(mesh.axes().begin(), mesh.axes().end(),
                                   [](const Mesh::Axis& axis) { return axis.size > 1; });
    return std::pair(axes, -mesh.Size(kDataAxis));
  };
  return key(a) < key(b);
}

class Searcher {
 public:
  Searcher(const PlanProblem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), graph_(problem) {}

  absl::StatusOr<SearchResult> Run() {
    CADRE_RETURN_IF_ERROR(FindMeshes());
    for (size_t m = 0; m < meshes_.size(); ++m) Minimise(m);
    if (minima_.empty()) return NoPlanFits(problem_, meshes_, options_.explains);
    PredictMostPromising();
    Refine();
    Improve();
    Report();
    return std::move(result_);
  }

 private:
  struct Minimum {
    size_t mesh = 0;
    size_t weight = 0;
    double sum = 0;
    std::vector<int> choice;
  };
  struct PredictedPlan {
    Minimum found;
    Candidate candidate;
    // Order() makes nearly equal objectives equal.
    double objective = 0;
  };

  // Sorts meshes by their lower bounds, so that later ones can be skipped.
  absl::Status FindMeshes() {
    int unsatisfied = -1;
    const std::vector<Mesh> meshes = MeshesFor(problem_);
    result_.meshes = meshes.size();
    for (const Mesh& mesh : meshes) {
      auto search = std::make_unique<MeshSearch>(problem_, graph_, mesh);
      if (search->unsatisfied() >= 0) {
        unsatisfied = search->unsatisfied();
      } else {
        meshes_.push_back(std::move(search));
      }
    }
    if (meshes_.empty()) return UnsatisfiablePins(unsatisfied);
    ChooseWeights();
    std::vector<double> bounds;
    for (const auto& mesh : meshes_) bounds.push_back(mesh->LowerBound(1));
    std::vector<size_t> order(meshes_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return bounds[a] < bounds[b]; });
    std::vector<std::unique_ptr<MeshSearch>> ordered;
    for (const size_t m : order) ordered.push_back(std::move(meshes_[m]));
    meshes_ = std::move(ordered);
    return absl::OkStatus();
  }

  void ChooseWeights() {
    const bool hides = problem_.overlap && problem_.hardware.computes() && problem_.ranks > 1;
    const bool many = meshes_.size() > kManyMeshes;
    slack_ = many ? kManyMeshesSlack : kSlack;
    if (!hides) {
      weights_ = {1};
    } else if (many) {
      weights_.assign(std::begin(kFewWeights), std::end(kFewWeights));
    } else {
      weights_.assign(std::begin(kWeights), std::end(kWeights));
    }
    min_.assign(weights_.size(), kInfiniteSeconds);
    prices_.assign(weights_.size(), 0);
  }

  absl::Status UnsatisfiablePins(int layer) const {
    if (layer < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("no mesh of ", problem_.ranks,
                       " ranks matches the pinned mesh and has an axis besides data for the layers "
                       "that are pinned to one"));
    }
    const GraphLayer& unsatisfied = (*problem_.graph)[layer];
    const auto pin = problem_.pins.layers.find(unsatisfied.name);
    if (pin == problem_.pins.layers.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer '", unsatisfied.name, "': batch_norm.per_rank gives a rank one value per channel ",
          "on every mesh of ", problem_.ranks, " ranks that was considered; unset per_rank, ",
          "increase batch_per_group, or use fewer micro_batches or ranks"));
    }
    const bool per_rank =
        unsatisfied.kind == LayerKind::kBatchNorm && unsatisfied.settings.batch_norm().per_rank();
    return absl::InvalidArgumentError(absl::StrCat(
        "layer '", unsatisfied.name, "' is pinned to ", pin->second,
        ", which cannot be split evenly", per_rank ? ", with more than one value per channel," : "",
        " on any mesh of ", problem_.ranks, " ranks that was considered"));
  }

  // Data parallelism is always predicted, for comparison.
  bool IsDataParallel(size_t m) const {
    return meshes_[m]->mesh().Size(kDataAxis) == problem_.ranks;
  }

  void Minimise(size_t m) {
    MeshSearch& mesh = *meshes_[m];
    const int64_t limit = problem_.hardware.memory_bytes;
    if (limit > 0 && mesh.MinBytes() > limit) {
      result_.memory_binds = true;
      return;
    }
    for (size_t w = 0; w < weights_.size(); ++w) {
      const bool data_parallel = IsDataParallel(m);
      if (!data_parallel && mesh.LowerBound(weights_[w]) > slack_ * min_[w]) continue;
      const SumProblem& sum = mesh.Sum(weights_[w]);
      SumSolution solution = cadre::Minimise(sum, graph_.order(), options_.max_states);
      result_.states += solution.states;
      if (limit > 0 && solution.bytes > limit) {
        result_.memory_binds = true;
        ByteLimit within{.bytes = limit,
                         .max_sum = data_parallel ? kInfiniteSeconds : min_[w],
                         .max_labels = options_.max_labels,
                         .price = prices_[w]};
        auto fitting = MinimiseWithin(sum, graph_.order(), options_.max_states, solution, within);
        prices_[w] = within.price;
        if (!fitting.has_value()) continue;
        solution = *std::move(fitting);
        result_.states += solution.states;
      }
      result_.exact = result_.exact && solution.exact;
      if (w == 0) bound_ = std::min(bound_, solution.bound);
      min_[w] = std::min(min_[w], solution.sum);
      minima_.push_back({m, w, solution.sum, std::move(solution.choice)});
    }
  }

  bool SameSum(const Minimum& a, const Minimum& b) const {
    constexpr double kSame = 1e-12;
    return a.weight == b.weight && std::abs(a.sum - b.sum) <= kSame * std::abs(a.sum);
  }

  // Equal sums usually belong to the same plan on meshes that factor the ranks differently.
  bool PreferredOver(const Minimum& a, const Minimum& b) const {
    if (a.weight != b.weight) return a.weight < b.weight;
    if (a.sum != b.sum) return a.sum < b.sum;
    return HasPreferredMesh(meshes_[a.mesh]->mesh(), meshes_[b.mesh]->mesh());
  }

  // Predicts the best plan of each weight, then the second best and so on, until there are enough.
  void PredictMostPromising() {
    // Near-equality is not transitive, so sums that differ only by rounding are made equal first.
    std::sort(minima_.begin(), minima_.end(), [](const Minimum& a, const Minimum& b) {
      return std::pair(a.weight, a.sum) < std::pair(b.weight, b.sum);
    });
    for (size_t f = 1; f < minima_.size(); ++f) {
      if (SameSum(minima_[f - 1], minima_[f])) minima_[f].sum = minima_[f - 1].sum;
    }
    std::stable_sort(minima_.begin(), minima_.end(),
                     [&](const Minimum& a, const Minimum& b) { return PreferredOver(a, b); });
    std::vector<std::vector<const Minimum*>> by_weight(weights_.size());
    for (const Minimum& found : minima_) {
      std::vector<const Minimum*>& same_weight = by_weight[found.weight];
      if (same_weight.empty() || same_weight.back()->sum != found.sum) {
        same_weight.push_back(&found);
      }
    }
    std::set<std::pair<size_t, std::vector<int>>> seen;
    for (size_t i = 0; i < minima_.size(); ++i) {
      for (const std::vector<const Minimum*>& candidates : by_weight) {
        if (i >= candidates.size() || std::ssize(predicted_) >= options_.max_predicted) continue;
        const Minimum& found = *candidates[i];
        if (seen.insert({found.mesh, found.choice}).second) Predict(found);
      }
    }
    if (options_.max_predicted <= 1) return;
    for (const Minimum& found : minima_) {
      if (IsDataParallel(found.mesh) && seen.insert({found.mesh, found.choice}).second)
        Predict(found);
    }
  }

  void Predict(const Minimum& found) {
    Plan plan = WithBuckets(problem_, meshes_[found.mesh]->PlanOf(found.choice));
    Prediction prediction = cadre::Predict(problem_, plan);
    const double objective = ObjectiveOf(problem_, prediction);
    predicted_.push_back({found, {std::move(plan), std::move(prediction)}, objective});
  }

  static bool Better(const PredictedPlan& a, const PredictedPlan& b) {
    if (a.objective != b.objective) return a.objective < b.objective;
    const Candidate& left = a.candidate;
    const Candidate& right = b.candidate;
    const double left_elements = std::round(left.prediction.elements_per_rank);
    const double right_elements = std::round(right.prediction.elements_per_rank);
    if (left_elements != right_elements) return left_elements < right_elements;
    return HasPreferredMesh(left.plan.mesh, right.plan.mesh);
  }

  // Sorts by objective, after making objectives equal that differ only by rounding.
  void Order() {
    constexpr double kSame = 1e-9;
    std::stable_sort(
        predicted_.begin(), predicted_.end(),
        [](const PredictedPlan& a, const PredictedPlan& b) { return a.objective < b.objective; });
    for (size_t p = 1; p < predicted_.size(); ++p) {
      const double before = predicted_[p - 1].objective;
      double& objective = predicted_[p].objective;
      if (objective - before <= kSame * objective) objective = before;
    }
    std::stable_sort(predicted_.begin(), predicted_.end(), Better);
  }

  // Searches the best buckets for the first few plans.
  void Refine() {
    constexpr size_t kRefined = 3;
    Order();
    for (size_t p = 0; p < std::min(kRefined, predicted_.size()); ++p) Refine(predicted_[p]);
    Order();
  }
  void Refine(PredictedPlan& predicted) {
    Candidate& candidate = predicted.candidate;
    candidate.plan = WithBestBuckets(problem_, std::move(candidate.plan));
    candidate.prediction = cadre::Predict(problem_, candidate.plan);
    predicted.objective = ObjectiveOf(problem_, candidate.prediction);
  }

  // Local search: forces one layer to another option than in the fastest plan and minimises over
  // all others. Overlapped time is not a sum, so one of these plans may be faster.
  void Improve() {
    int left = options_.max_improvements;
    size_t stuck = 0;
    while (left > 0 && stuck < weights_.size()) {
      const PredictedPlan best = predicted_.front();
      if (ImproveOn(best, (best.found.weight + stuck) % weights_.size(), left)) {
        stuck = 0;
        Order();
      } else {
        ++stuck;
      }
    }
  }

  // Returns whether a faster plan was found.
  bool ImproveOn(const PredictedPlan& best, size_t weight, int& left) {
    MeshSearch& mesh = *meshes_[best.found.mesh];
    SumProblem sum = mesh.Sum(weights_[weight]);
    const size_t before = predicted_.size();
    for (int l = 0; l < sum.size(); ++l) {
      if (!Describe((*problem_.graph)[l].kind).is_product) continue;
      const std::vector<double> unary = sum.unary[l];
      for (int o = 0; o < std::ssize(unary); ++o) {
        if (o == best.found.choice[l] || unary.size() == 1) continue;
        if (left <= 0) return predicted_.size() > before;
        sum.unary[l].assign(unary.size(), kForbidden);
        sum.unary[l][o] = unary[o];
        left -= TryImprovement(best, weight, sum);
      }
      sum.unary[l] = unary;
    }
    return predicted_.size() > before;
  }

  // Returns the cost of the attempt, in units of max_improvements.
  int TryImprovement(const PredictedPlan& best, size_t weight, const SumProblem& sum) {
    SumSolution solution = cadre::Minimise(sum, graph_.order(), options_.max_states);
    result_.states += solution.states;
    const int cost = 1 + solution.states / kStatesPerImprovement;
    const int64_t limit = problem_.hardware.memory_bytes;
    if (solution.sum >= kForbidden || (limit > 0 && solution.bytes > limit)) return cost;
    if (!improvements_.insert({best.found.mesh, solution.choice}).second) return cost;
    Predict({best.found.mesh, weight, solution.sum, std::move(solution.choice)});
    // The fastest plan has its best buckets already, so a plan that is nearly as fast gets its best
    // buckets before the comparison.
    constexpr double kNearly = 1.005;
    constexpr int kRefining = 9;
    const bool nearly = predicted_.back().objective < kNearly * best.objective;
    if (nearly) Refine(predicted_.back());
    if (predicted_.back().objective >= best.objective) predicted_.pop_back();
    return nearly ? cost + kRefining : cost;
  }

  void Report() {
    FindRunnersUp(predicted_.front());
    std::set<size_t> meshes;
    for (PredictedPlan& each : predicted_) {
      if (!meshes.insert(each.found.mesh).second) continue;
      if (meshes.size() == 1) {
        result_.best = std::move(each.candidate);
      } else if (std::ssize(result_.others) < kMaxOthers) {
        result_.others.push_back(std::move(each.candidate));
      }
    }
    for (int l = 0; l < graph_.size(); ++l) {
      if (meshes_[predicted_.front().found.mesh]->IsStrategyImpossible(l)) {
        result_.strategy_exceptions.push_back((*problem_.graph)[l].name);
      }
    }
    if (!result_.exact) result_.gap = std::max(0.0, (min_[0] - bound_) / min_[0]);
  }

  void FindRunnersUp(const PredictedPlan& best) {
    const SumProblem& sum = meshes_[best.found.mesh]->Sum(1);
    const int64_t limit = problem_.hardware.memory_bytes;
    const int64_t bytes = BytesOf(sum, best.found.choice);
    for (int l = 0; l < sum.size(); ++l) {
      std::vector<int> choice = best.found.choice;
      LayerRunnerUp runner_up{.more_seconds = kInfiniteSeconds};
      const auto of_layer = [&](int option) {
        choice[l] = option;
        return TermsOf(sum, l, choice);
      };
      const int chosen = best.found.choice[l];
      const double now = of_layer(chosen);
      for (int o = 0; o < std::ssize(sum.unary[l]); ++o) {
        const int64_t more = sum.bytes[l][o] - sum.bytes[l][chosen];
        if (o == chosen || (limit > 0 && bytes + more > limit)) continue;
        const double seconds = of_layer(o) - now;
        if (seconds >= runner_up.more_seconds) continue;
        runner_up = {meshes_[best.found.mesh]->SplitsOf(l, o), seconds};
      }
      result_.runners_up.push_back(std::move(runner_up));
    }
  }

  // The terms of the sum that depend on a layer.
  static double TermsOf(const SumProblem& sum, int layer, const std::vector<int>& choice) {
    double terms = sum.unary[layer][choice[layer]];
    for (const SumProblem::Pair& pair : sum.pairs) {
      if (pair.a != layer && pair.b != layer) continue;
      terms += (*pair.table)[choice[pair.a] * sum.options(pair.b) + choice[pair.b]];
    }
    return terms;
  }

  const PlanProblem& problem_;
  const SearchOptions& options_;
  const SearchGraph graph_;
  std::vector<double> weights_;
  double slack_ = kSlack;
  std::vector<std::unique_ptr<MeshSearch>> meshes_;
  // By weight: the minimum sum so far, and the last price of a byte under a memory limit.
  std::vector<double> min_;
  std::vector<double> prices_;
  // A lower bound on all sums of the first weight.
  double bound_ = kInfiniteSeconds;
  std::vector<Minimum> minima_;
  std::vector<PredictedPlan> predicted_;
  std::set<std::pair<size_t, std::vector<int>>> improvements_;
  SearchResult result_;
};

// Buckets are not part of the sums, so the best plan under a fixed policy may be the fastest of
// all.
absl::StatusOr<SearchResult> SearchPolicies(PlanProblem problem, SearchOptions options) {
  CADRE_ASSIGN_OR_RETURN(SearchResult result, Searcher(problem, options).Run());
  if (!IsAuto(problem.collectives) || problem.ranks == 1 || options.max_improvements == 0) {
    return result;
  }
  options.max_improvements = 0;
  int64_t left = kMaxPolicyStates;
  for (const v1::Cluster::CollectivePolicy policy : AllPolicies()) {
    if (policy == v1::Cluster::AUTO || result.states > left) continue;
    problem.collectives = policy;
    absl::StatusOr<SearchResult> found = Searcher(problem, options).Run();
    if (!found.ok()) continue;
    left -= found->states;
    if (ObjectiveOf(problem, found->best.prediction) >=
        ObjectiveOf(problem, result.best.prediction)) {
      continue;
    }
    if (std::ssize(found->others) >= kMaxOthers) found->others.pop_back();
    found->others.insert(found->others.begin(), std::move(result.best));
    result.best = std::move(found->best);
    result.others = std::move(found->others);
    result.runners_up = std::move(found->runners_up);
    result.strategy_exceptions = std::move(found->strategy_exceptions);
  }
  return result;
}

// Removes the slowest plans, but keeps the fastest plan that places nothing, for callers that find
// that the placed ones do not fit into memory. Requires: fastest first.
void KeepFastest(std::vector<Candidate>& plans) {
  constexpr size_t kMaxPlans = 1 + kMaxOthers;
  if (plans.size() <= kMaxPlans) return;
  const auto unplaced = std::find_if(plans.begin(), plans.end(), [](const Candidate& candidate) {
    return !PlacesLayers(candidate.plan);
  });
  if (unplaced != plans.end() && unplaced >= plans.begin() + kMaxPlans) {
    std::iter_swap(unplaced, plans.begin() + kMaxPlans - 1);
  }
  plans.resize(kMaxPlans);
}

// Adds plans that place layers to the best plan and the others. They are not among the plans whose
// sums are minimised, so a result whose best plan is one of them is not exact.
void AddPlacedPlans(std::vector<Candidate> placed, const PlanProblem& problem,
                    SearchResult& result) {
  result.meshes += std::ssize(placed);
  std::vector<Candidate> all;
  if (!result.best.plan.layers.empty()) all.push_back(std::move(result.best));
  for (std::vector<Candidate>* more : {&result.others, &placed}) {
    std::move(more->begin(), more->end(), std::back_inserter(all));
  }
  std::stable_sort(all.begin(), all.end(), [&](const Candidate& a, const Candidate& b) {
    return ObjectiveOf(problem, a.prediction) < ObjectiveOf(problem, b.prediction);
  });
  KeepFastest(all);
  result.best = std::move(all.front());
  all.erase(all.begin());
  result.others = std::move(all);
  if (!PlacesLayers(result.best.plan)) return;
  result.exact = false;
  result.gap = kInfiniteSeconds;
  result.runners_up.assign(problem.graph->size(), {.more_seconds = kInfiniteSeconds});
  result.strategy_exceptions.clear();
}

// Also compares plans that place layers, which may fit into memory when nothing else does.
absl::StatusOr<SearchResult> SearchAll(const PlanProblem& problem, const SearchOptions& options) {
  absl::StatusOr<SearchResult> result = SearchPolicies(problem, options);
  const bool exhausted = absl::IsResourceExhausted(result.status());
  if (problem.strategy != Strategy::kAuto || !problem.pins.empty() || options.max_predicted <= 1 ||
      !(result.ok() || exhausted)) {
    return result;
  }
  std::vector<Candidate> placed = StagedPlans(problem);
  // The sum over layers is no bound if some are recomputed; SearchRecomputing knows the memory.
  const int64_t limit = problem.hardware.memory_bytes;
  const auto is_large = [&](const Candidate& candidate) {
    return limit > 0 && problem.recomputed.empty() && candidate.prediction.memory_bytes > limit;
  };
  if (std::erase_if(placed, is_large) > 0 && result.ok()) result->memory_binds = true;
  double fastest = result.ok() ? ObjectiveOf(problem, result->best.prediction) : kInfiniteSeconds;
  for (const Candidate& staged : placed) {
    fastest = std::min(fastest, ObjectiveOf(problem, staged.prediction));
  }
  std::vector<Candidate> on_ranks = PlacedPlans(problem, fastest);
  std::move(on_ranks.begin(), on_ranks.end(), std::back_inserter(placed));
  std::erase_if(placed, [&](const Candidate& candidate) {
    return !CheckNormStatistics(MicroBatchSizes(problem), *problem.graph, candidate.plan).ok();
  });
  if (placed.empty()) return result;
  if (!result.ok()) {
    result = SearchResult();
    result->memory_binds = true;
  }
  AddPlacedPlans(std::move(placed), problem, *result);
  return result;
}

}  // namespace

absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options) {
  if (!problem.pins.at.empty()) {
    return absl::InvalidArgumentError(
        "pins place layers on some of the ranks; the search does not compare such plans");
  }
  const auto search = [&](const PlanProblem& each, bool explains) {
    SearchOptions how = options;
    how.explains = explains && options.explains;
    return SearchAll(each, how);
  };
  CADRE_ASSIGN_OR_RETURN(SearchResult result, SearchRecomputing(problem, search));
  if (problem.pins.empty()) return result;
  PlanProblem free = problem;
  free.pins = Pins();
  CADRE_ASSIGN_OR_RETURN(SearchResult unpinned, SearchRecomputing(free, search));
  // The pinned plan is one of those that the free search could have found.
  const bool pinned_is_faster =
      ObjectiveOf(free, result.best.prediction) < ObjectiveOf(free, unpinned.best.prediction);
  result.unpinned = pinned_is_faster ? result.best : std::move(unpinned.best);
  return result;
}

}  // namespace cadre
