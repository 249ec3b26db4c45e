#include "coordinator/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/plan/elimination.h"
#include "coordinator/plan/search_memory.h"
#include "coordinator/plan/search_mesh.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// What the communication thread's seconds weigh: all, where nothing hides behind computing, down to
// next to nothing, which still prefers less of it where all else is equal.
constexpr double kWeights[] = {1, 0.5, 0.2, 0.01};

// Where there are many meshes.
constexpr double kFewWeights[] = {1, 0.05};
constexpr size_t kManyMeshes = 150;

// A sum may be so much above the least, and its plan still be the fastest once it overlaps.
constexpr double kSlack = 1.05;
constexpr double kLittleSlack = 1.0;

// Seconds of what shall not be.
constexpr double kForbidden = 1e15;

// So many states take about as long as a prediction.
constexpr int64_t kStatesOfAnImprovement = 20'000;

size_t At(int i) { return static_cast<size_t>(i); }

int AxesOf(const Mesh& mesh) {
  return static_cast<int>(std::count_if(mesh.axes().begin(), mesh.axes().end(),
                                        [](const Mesh::Axis& axis) { return axis.size > 1; }));
}

class Searcher {
 public:
  Searcher(const PlanProblem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), graph_(problem) {}

  absl::StatusOr<SearchResult> Run() {
    CADRE_RETURN_IF_ERROR(FindMeshes());
    for (size_t m = 0; m < meshes_.size(); ++m) Minimise(m);
    if (found_.empty()) return NoPlanFits(problem_, meshes_);
    PredictMostPromising();
    Refine();
    Improve();
    Report();
    return std::move(result_);
  }

 private:
  struct Found {
    size_t mesh = 0;
    size_t weight = 0;
    double sum = 0;
    std::vector<int> choice;
  };
  struct Predicted {
    size_t mesh = 0;
    size_t weight = 0;
    std::vector<int> choice;
    Candidate candidate;
    // As far as candidates are compared; equal where they are nearly so.
    double objective = 0;
  };

  // In the order of what they cost at least, so that the first show which others need no look.
  absl::Status FindMeshes() {
    int unfulfilled = -1;
    const std::vector<Mesh> meshes = MeshesFor(problem_);
    result_.meshes = static_cast<int64_t>(meshes.size());
    for (const Mesh& mesh : meshes) {
      auto search = std::make_unique<MeshSearch>(problem_, graph_, mesh);
      if (search->unfulfilled() >= 0) {
        unfulfilled = search->unfulfilled();
      } else {
        meshes_.push_back(std::move(search));
      }
    }
    if (meshes_.empty()) return CannotFulfil(unfulfilled);
    TakeWeights();
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

  void TakeWeights() {
    const bool hides = problem_.overlap && problem_.machine.computes() && problem_.ranks > 1;
    const bool many = meshes_.size() > kManyMeshes;
    slack_ = many ? kLittleSlack : kSlack;
    if (!hides) {
      weights_ = {1};
    } else if (many) {
      weights_.assign(std::begin(kFewWeights), std::end(kFewWeights));
    } else {
      weights_.assign(std::begin(kWeights), std::end(kWeights));
    }
    least_.assign(weights_.size(), kInfinite);
    prices_.assign(weights_.size(), 0);
  }

  absl::Status CannotFulfil(int layer) const {
    if (layer < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("no mesh of ", problem_.ranks,
                       " ranks is as it is pinned, with an axis besides data "
                       "for every layer that is pinned to one"));
    }
    const std::string& name = (*problem_.graph)[layer].name;
    return absl::InvalidArgumentError(
        absl::StrCat("layer '", name, "' is pinned to ", problem_.pins.layers.at(name),
                     ", which cannot be cut into equal parts on any mesh of ", problem_.ranks,
                     " ranks that is tried"));
  }

  // Data parallelism, which is always an answer to compare with.
  bool IsUsual(size_t m) const { return meshes_[m]->mesh().Size(kDataAxis) == problem_.ranks; }

  void Minimise(size_t m) {
    MeshSearch& mesh = *meshes_[m];
    const int64_t limit = problem_.machine.memory_bytes;
    if (limit > 0 && mesh.LeastBytes() > limit) return;
    bool searched = false;
    for (size_t w = 0; w < weights_.size(); ++w) {
      const bool usual = IsUsual(m);
      if (!usual && mesh.LowerBound(weights_[w]) > slack_ * least_[w]) continue;
      searched = true;
      const SumProblem& sum = mesh.Sum(weights_[w]);
      SumAnswer answer = cadre::Minimise(sum, graph_.order(), options_.most_states);
      result_.states += answer.states;
      if (limit > 0 && answer.bytes > limit) {
        ByteLimit within{.bytes = limit,
                         .worth = usual ? kInfinite : least_[w],
                         .most_labels = static_cast<size_t>(options_.most_labels),
                         .price = prices_[w]};
        auto fitting = MinimiseWithin(sum, graph_.order(), options_.most_states, answer, within);
        prices_[w] = within.price;
        if (!fitting.has_value()) continue;
        answer = *std::move(fitting);
        result_.states += answer.states;
      }
      Note(w, answer);
      least_[w] = std::min(least_[w], answer.sum);
      found_.push_back({m, w, answer.sum, std::move(answer.choice)});
    }
    if (searched) ++result_.meshes_searched;
  }

  bool SameSum(const Found& a, const Found& b) const {
    constexpr double kSame = 1e-12;
    return a.weight == b.weight && std::abs(a.sum - b.sum) <= kSame * std::abs(a.sum);
  }

  // Of equal sums, which are as a rule the same plan on a mesh that has its axes cut in other ways,
  // the one with fewest axes, and most ranks along data.
  bool Before(const Found& a, const Found& b) const {
    if (a.weight != b.weight) return a.weight < b.weight;
    if (a.sum != b.sum) return a.sum < b.sum;
    const Mesh& left = meshes_[a.mesh]->mesh();
    const Mesh& right = meshes_[b.mesh]->mesh();
    if (AxesOf(left) != AxesOf(right)) return AxesOf(left) < AxesOf(right);
    return left.Size(kDataAxis) > right.Size(kDataAxis);
  }

  // What is known of the least sums.
  void Note(size_t weight, const SumAnswer& answer) {
    result_.exact = result_.exact && answer.exact;
    if (weight > 0) return;
    bound_ = std::min(bound_, answer.bound);
  }

  // The best of each weight in turn, until there are enough.
  void PredictMostPromising() {
    // Nearly equal sums make no order, so equal ones are made one first.
    std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      return std::pair(a.weight, a.sum) < std::pair(b.weight, b.sum);
    });
    for (size_t f = 1; f < found_.size(); ++f) {
      if (SameSum(found_[f - 1], found_[f])) found_[f].sum = found_[f - 1].sum;
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const Found& a, const Found& b) { return Before(a, b); });
    std::vector<std::vector<const Found*>> by_weight(weights_.size());
    for (const Found& found : found_) {
      std::vector<const Found*>& of = by_weight[found.weight];
      if (of.empty() || of.back()->sum != found.sum) of.push_back(&found);
    }
    std::set<std::pair<size_t, std::vector<int>>> seen;
    for (size_t i = 0; i < found_.size(); ++i) {
      for (const std::vector<const Found*>& of : by_weight) {
        if (i >= of.size() || predicted_.size() >= At(options_.most_predicted)) continue;
        if (seen.insert({of[i]->mesh, of[i]->choice}).second) Predict(*of[i]);
      }
    }
    if (options_.most_predicted <= 1) return;
    for (const Found& found : found_) {
      if (IsUsual(found.mesh) && seen.insert({found.mesh, found.choice}).second) Predict(found);
    }
  }

  void Predict(const Found& found) {
    Plan plan = WithBuckets(problem_, meshes_[found.mesh]->PlanOf(found.choice));
    Prediction prediction = cadre::Predict(problem_, plan);
    const double objective = ObjectiveOf(problem_, prediction);
    predicted_.push_back({found.mesh,
                          found.weight,
                          found.choice,
                          {std::move(plan), std::move(prediction)},
                          objective});
  }

  static bool Better(const Predicted& a, const Predicted& b) {
    if (a.objective != b.objective) return a.objective < b.objective;
    const Candidate& left = a.candidate;
    const Candidate& right = b.candidate;
    const double left_words = std::round(left.prediction.words_per_rank);
    const double right_words = std::round(right.prediction.words_per_rank);
    if (left_words != right_words) return left_words < right_words;
    const Mesh& mesh = left.plan.mesh;
    if (AxesOf(mesh) != AxesOf(right.plan.mesh)) return AxesOf(mesh) < AxesOf(right.plan.mesh);
    return mesh.Size(kDataAxis) > right.plan.mesh.Size(kDataAxis);
  }

  // Fastest first. Nearly equal objectives make no order, so they are made equal.
  void Order() {
    constexpr double kSame = 1e-9;
    std::stable_sort(
        predicted_.begin(), predicted_.end(),
        [](const Predicted& a, const Predicted& b) { return a.objective < b.objective; });
    for (size_t p = 1; p < predicted_.size(); ++p) {
      const double before = predicted_[p - 1].objective;
      double& objective = predicted_[p].objective;
      if (objective - before <= kSame * objective) objective = before;
    }
    std::stable_sort(predicted_.begin(), predicted_.end(), Better);
  }

  // The few that come first get their best buckets.
  void Refine() {
    constexpr size_t kRefined = 3;
    Order();
    for (size_t p = 0; p < std::min(kRefined, predicted_.size()); ++p) Refine(predicted_[p]);
    Order();
  }
  void Refine(Predicted& predicted) {
    Candidate& candidate = predicted.candidate;
    candidate.plan = WithBestBuckets(problem_, std::move(candidate.plan));
    candidate.prediction = cadre::Predict(problem_, candidate.plan);
    predicted.objective = ObjectiveOf(problem_, candidate.prediction);
  }

  // Plans in which one layer is cut otherwise than in the fastest, and all others as is best with
  // that: what is hidden behind computing is no sum, so one of them may be faster.
  void Improve() {
    int left = options_.most_improvements;
    size_t stuck = 0;
    while (left > 0 && stuck < weights_.size()) {
      const Predicted best = predicted_.front();
      if (ImproveOn(best, (best.weight + stuck) % weights_.size(), left)) {
        stuck = 0;
        Order();
      } else {
        ++stuck;
      }
    }
  }

  // True: something faster was found.
  bool ImproveOn(const Predicted& best, size_t weight, int& left) {
    MeshSearch& mesh = *meshes_[best.mesh];
    SumProblem sum = mesh.Sum(weights_[weight]);
    const size_t before = predicted_.size();
    for (int l = 0; l < sum.size(); ++l) {
      if (!IsProduct((*problem_.graph)[l].kind)) continue;
      const std::vector<double> unary = sum.unary[At(l)];
      for (size_t o = 0; o < unary.size(); ++o) {
        if (static_cast<int>(o) == best.choice[At(l)] || unary.size() == 1) continue;
        if (left <= 0) return predicted_.size() > before;
        sum.unary[At(l)].assign(unary.size(), kForbidden);
        sum.unary[At(l)][o] = unary[o];
        left -= TryImprovement(best, weight, sum);
      }
      sum.unary[At(l)] = unary;
    }
    return predicted_.size() > before;
  }

  // How much of the search's patience it took.
  int TryImprovement(const Predicted& best, size_t weight, const SumProblem& sum) {
    SumAnswer answer = cadre::Minimise(sum, graph_.order(), options_.most_states);
    result_.states += answer.states;
    const int cost = 1 + static_cast<int>(answer.states / kStatesOfAnImprovement);
    const int64_t limit = problem_.machine.memory_bytes;
    if (answer.sum >= kForbidden || (limit > 0 && answer.bytes > limit)) return cost;
    if (!improvements_.insert({best.mesh, answer.choice}).second) return cost;
    Predict({best.mesh, weight, answer.sum, std::move(answer.choice)});
    // The fastest has its best buckets already.
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
    for (Predicted& each : predicted_) {
      if (!meshes.insert(each.mesh).second) continue;
      if (meshes.size() == 1) {
        result_.best = std::move(each.candidate);
      } else if (result_.others.size() < At(options_.runners_up)) {
        result_.others.push_back(std::move(each.candidate));
      }
    }
    for (int l = 0; l < graph_.size(); ++l) {
      if (meshes_[predicted_.front().mesh]->IsFreed(l)) {
        result_.freed.push_back((*problem_.graph)[l].name);
      }
    }
    result_.micro_batches = problem_.micro_batches;
    if (!result_.exact) result_.gap = std::max(0.0, (least_[0] - bound_) / least_[0]);
  }

  void FindRunnersUp(const Predicted& best) {
    const SumProblem& sum = meshes_[best.mesh]->Sum(1);
    const int64_t limit = problem_.machine.memory_bytes;
    const int64_t bytes = BytesOf(sum, best.choice);
    for (int l = 0; l < sum.size(); ++l) {
      std::vector<int> choice = best.choice;
      LayerRunnerUp runner_up{.more_seconds = kInfinite};
      const auto of_layer = [&](int option) {
        choice[At(l)] = option;
        return TermsOf(sum, l, choice);
      };
      const int chosen = best.choice[At(l)];
      const double now = of_layer(chosen);
      for (int o = 0; o < static_cast<int>(sum.options(l)); ++o) {
        const int64_t more = sum.bytes[At(l)][At(o)] - sum.bytes[At(l)][At(chosen)];
        if (o == chosen || (limit > 0 && bytes + more > limit)) continue;
        const double seconds = of_layer(o) - now;
        if (seconds >= runner_up.more_seconds) continue;
        runner_up = {meshes_[best.mesh]->SplitsOf(l, o), seconds};
      }
      result_.runners_up.push_back(std::move(runner_up));
    }
  }

  // Of the sum, what a layer has a part in.
  static double TermsOf(const SumProblem& sum, int layer, const std::vector<int>& choice) {
    double terms = sum.unary[At(layer)][At(choice[At(layer)])];
    for (const SumProblem::Pair& pair : sum.pairs) {
      if (pair.a != layer && pair.b != layer) continue;
      terms += (*pair.table)[At(choice[At(pair.a)]) * sum.options(pair.b) + At(choice[At(pair.b)])];
    }
    return terms;
  }

  const PlanProblem& problem_;
  const SearchOptions& options_;
  const SearchGraph graph_;
  std::vector<double> weights_;
  double slack_ = kSlack;
  std::vector<std::unique_ptr<MeshSearch>> meshes_;
  // By weight: the least sum so far, and what a byte was last worth under a memory limit.
  std::vector<double> least_;
  std::vector<double> prices_;
  // No sum of the first weight is less.
  double bound_ = kInfinite;
  std::vector<Found> found_;
  std::vector<Predicted> predicted_;
  std::set<std::pair<size_t, std::vector<int>>> improvements_;
  SearchResult result_;
};

// As it is, or in more micro-batches if it may be and nothing fits.
absl::StatusOr<SearchResult> SearchMicroBatches(const PlanProblem& problem,
                                                const SearchOptions& options) {
  absl::StatusOr<SearchResult> result = Searcher(problem, options).Run();
  if (!problem.free_micro_batches) return result;
  const absl::Status first = result.status();
  PlanProblem smaller = problem;
  while (absl::IsResourceExhausted(result.status()) &&
         int64_t{2} * smaller.micro_batches * problem.ranks <= problem.batch) {
    smaller.micro_batches *= 2;
    result = Searcher(smaller, options).Run();
  }
  if (absl::IsResourceExhausted(result.status())) return first;
  return result;
}

bool IsAutomatic(const PlanProblem& problem) {
  return problem.collectives == v1::AUTO ||
         problem.collectives == v1::COLLECTIVE_POLICY_UNSPECIFIED;
}

// What is best under one policy may be fastest under all, buckets being none of the sums.
void TryPolicies(PlanProblem problem, SearchOptions options, SearchResult* result) {
  if (!IsAutomatic(problem) || problem.ranks == 1 || options.most_improvements == 0) return;
  const PlanProblem automatic = problem;
  problem.micro_batches = result->micro_batches;
  options.most_improvements = 0;
  int64_t left = options.most_policy_states;
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    if (policy == v1::AUTO || result->states > left) continue;
    problem.collectives = policy;
    absl::StatusOr<SearchResult> found = Searcher(problem, options).Run();
    if (!found.ok()) continue;
    left -= found->states;
    const auto objective = [&](const SearchResult& of) {
      return ObjectiveOf(automatic, of.best.prediction);
    };
    if (objective(*found) >= objective(*result)) continue;
    if (found->others.size() > At(options.runners_up) - 1) found->others.pop_back();
    found->others.insert(found->others.begin(), std::move(result->best));
    result->best = std::move(found->best);
    result->others = std::move(found->others);
    result->runners_up = std::move(found->runners_up);
    result->freed = std::move(found->freed);
  }
}

absl::StatusOr<SearchResult> SearchPolicies(const PlanProblem& problem,
                                            const SearchOptions& options) {
  CADRE_ASSIGN_OR_RETURN(SearchResult result, SearchMicroBatches(problem, options));
  TryPolicies(problem, options, &result);
  return result;
}

}  // namespace

absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options) {
  CADRE_ASSIGN_OR_RETURN(SearchResult result, SearchPolicies(problem, options));
  if (problem.pins.empty()) return result;
  PlanProblem free = problem;
  free.pins = Pins();
  CADRE_ASSIGN_OR_RETURN(SearchResult unpinned, SearchPolicies(free, options));
  // What is pinned is one of the plans that the free search may answer.
  const bool pinned_is_faster =
      unpinned.micro_batches == result.micro_batches &&
      ObjectiveOf(free, result.best.prediction) < ObjectiveOf(free, unpinned.best.prediction);
  result.unpinned = pinned_is_faster ? result.best : std::move(unpinned.best);
  return result;
}

}  // namespace cadre
