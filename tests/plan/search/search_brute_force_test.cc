// Compares the search with the enumeration of all combinations of options on every mesh.
//
// This tests the minimisation: elimination, memory limits, bounds, and the search's tables by
// class. Both sides share the options of layer_options.h (checked to be legal here), the seconds of
// one collective and of one move, and a layer's compute time and memory. The search evaluates them
// for options in compact layouts, this test for the layouts of a plan (problems.h, MovesOf).
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "model/op_indices.h"
#include "plan/plan.h"
#include "plan/search/layer_options.h"
#include "plan/search/move_model.h"
#include "plan/search/prediction.h"
#include "plan/search/search.h"
#include "plan/search/search_mesh.h"
#include "tests/plan/search/problems.h"

namespace cadre {
namespace {

using testing::OwnedProblem;
using testing::PlanBytes;
using testing::PlanCost;
using testing::RandomProblem;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Problems with more combinations on a mesh are skipped.
constexpr int64_t kMaxCombinations = 4'000;

std::map<std::string, std::vector<std::string>> AxesByIndex(const std::vector<IndexSplit>& splits) {
  std::map<std::string, std::vector<std::string>> axes;
  for (const IndexSplit& split : splits) {
    if (!split.axes.empty()) axes[split.index] = split.axes;
  }
  return axes;
}

// All plans of one mesh.
class EveryPlan {
 public:
  EveryPlan(const PlanProblem& problem, const Mesh& mesh) : problem_(problem), mesh_(mesh) {
    const CompactMesh compact(mesh);
    for (int l = 0; l < problem.graph->size(); ++l) {
      const LayerClass layer_class = ClassOf(problem, l);
      ways_.emplace_back();
      const GraphLayer& layer = (*problem.graph)[l];
      const std::vector<std::vector<IndexSplit>> legal = LegalSplits(layer, mesh);
      for (const LayerOption& option : OptionsOf(layer_class, compact)) {
        const std::vector<IndexSplit> splits = SplitsOf(layer_class, compact, option);
        EXPECT_TRUE(
            std::any_of(legal.begin(), legal.end(),
                        [&](const auto& each) { return AxesByIndex(each) == AxesByIndex(splits); }))
            << layer.name << " on " << mesh.ToString();
        ways_.back().push_back(*LayOut(layer, mesh, splits));
      }
    }
  }

  int64_t combinations() const {
    int64_t product = 1;
    for (const auto& ways : ways_) {
      product = std::min<int64_t>(product * std::ssize(ways), 1 << 30);
    }
    return product;
  }

  // The minimum cost of plans within the problem's memory.
  double MinCost() {
    std::vector<size_t> choice(ways_.size(), 0);
    if (combinations() == 0) return kInfinite;
    LayerCosts();
    double minimum = kInfinite;
    do {
      const double cost = CostOf(choice);
      const int64_t limit = problem_.hardware.memory_bytes;
      if (cost < minimum && (limit == 0 || BytesOf(choice) <= limit)) minimum = cost;
    } while (Next(choice));
    return minimum;
  }

 private:
  bool Next(std::vector<size_t>& choice) const {
    for (size_t l = 0; l < choice.size(); ++l) {
      if (++choice[l] < ways_[l].size()) return true;
      choice[l] = 0;
    }
    return false;
  }

  void LayerCosts() {
    for (size_t l = 0; l < ways_.size(); ++l) {
      costs_.emplace_back();
      bytes_.emplace_back();
      for (const LayerLayouts& way : ways_[l]) {
        const auto layer = static_cast<int>(l);
        costs_.back().push_back(testing::LayerCost(problem_, mesh_, layer, way));
        bytes_.back().push_back(LayerBytes(problem_, mesh_, layer, way));
      }
    }
    moves_.resize(ways_.size());
  }

  int64_t BytesOf(const std::vector<size_t>& choice) const {
    int64_t bytes = 0;
    for (size_t l = 0; l < choice.size(); ++l) bytes += bytes_[l][choice[l]];
    return bytes;
  }

  double CostOf(const std::vector<size_t>& choice) {
    double cost = 0;
    for (size_t l = 0; l < choice.size(); ++l) {
      cost += costs_[l][choice[l]] + MovesTo(l, choice);
    }
    return cost;
  }

  // A layer's moves depend on its own splits, on those of its producers and on those of the first
  // layer, which determine the layout of the batch. Each case is computed once, from a whole plan.
  double MovesTo(size_t l, const std::vector<size_t>& choice) {
    std::vector<size_t> key = {choice[l]};
    for (const int producer : (*problem_.graph)[l].inputs) {
      const int at =
          producer == Graph::kInput ? problem_.graph->consumers(Graph::kInput).front() : producer;
      key.push_back(choice[at]);
    }
    const auto known = moves_[l].find(key);
    if (known != moves_[l].end()) return known->second;
    Plan plan{.mesh = mesh_};
    for (size_t k = 0; k < choice.size(); ++k) plan.layers.push_back(ways_[k][choice[k]]);
    const auto [forward, backward] = MovesOf(problem_, plan)[l];
    return moves_[l][key] = problem_.micro_batches * (forward.seconds + backward.seconds);
  }

  const PlanProblem& problem_;
  const Mesh mesh_;
  std::vector<std::vector<LayerLayouts>> ways_;
  std::vector<std::vector<double>> costs_;
  std::vector<std::vector<int64_t>> bytes_;
  std::vector<std::map<std::vector<size_t>, double>> moves_;
};

// The minimum cost over all meshes; nullopt if there are too many combinations.
std::optional<double> MinCostOfAll(const PlanProblem& problem) {
  double minimum = kInfinite;
  for (const Mesh& mesh : MeshesFor(problem)) {
    EveryPlan plans(problem, mesh);
    if (plans.combinations() > kMaxCombinations) return std::nullopt;
    minimum = std::min(minimum, plans.MinCost());
  }
  return minimum;
}

// Searches with a single predicted plan, so that the result is the plan with the minimum sum.
absl::StatusOr<SearchResult> SearchSums(const PlanProblem& problem) {
  return Search(problem, {.max_labels = 100'000, .max_predicted = 1, .max_improvements = 0});
}

// Returns false if the problem is too large.
bool Compare(const OwnedProblem& owned) {
  const PlanProblem& problem = owned.problem;
  const std::optional<double> minimum = MinCostOfAll(problem);
  if (!minimum.has_value()) return false;
  const absl::StatusOr<SearchResult> result = SearchSums(problem);
  if (*minimum == kInfinite) {
    EXPECT_FALSE(result.ok()) << owned.spec.DebugString();
    return true;
  }
  EXPECT_TRUE(result.ok()) << result.status() << owned.spec.DebugString();
  if (!result.ok()) return true;
  EXPECT_TRUE(result->exact);
  EXPECT_TRUE(CheckPlan(result->best.plan, *problem.graph, *problem.index).ok())
      << owned.spec.DebugString();
  EXPECT_NEAR(PlanCost(problem, result->best.plan), *minimum, 1e-9 * *minimum)
      << owned.spec.DebugString() << result->best.plan.mesh.ToString();
  if (problem.hardware.memory_bytes > 0) {
    EXPECT_LE(PlanBytes(problem, result->best.plan), problem.hardware.memory_bytes);
  }
  return true;
}

int RandomRanks(std::mt19937& random) {
  constexpr int kRanks[] = {2, 2, 3, 4, 4, 6, 8};
  return kRanks[random() % std::size(kRanks)];
}

// Compares random problems, each modified by `change`, until `problems` of them were small enough.
template <typename Change>
void ForRandomProblems(int problems, unsigned seed, Change change) {
  std::mt19937 random(seed);
  for (int compared = 0; compared < problems;) {
    OwnedProblem owned = RandomProblem(random, RandomRanks(random));
    change(owned.problem, random);
    if (Compare(owned)) ++compared;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SearchBruteForceTest, FindsMinimumPlan) {
  ForRandomProblems(1'000, 1, [](PlanProblem&, std::mt19937&) {});
}

// The limits range from just below the minimum memory of any plan to the memory of the fastest
// plan.
TEST(SearchBruteForceTest, FindsMinimumPlanWithinMemory) {
  ForRandomProblems(150, 2, [](PlanProblem& problem, std::mt19937& random) {
    const SearchGraph graph(problem);
    auto min_bytes = kInfinite;
    for (const Mesh& mesh : MeshesFor(problem)) {
      const int64_t minimum = MeshSearch(problem, graph, mesh).MinBytes();
      min_bytes = std::min(min_bytes, 1.0 * minimum);
    }
    const auto result = SearchSums(problem);
    ASSERT_TRUE(result.ok()) << result.status();
    const double bytes_of_fastest = PlanBytes(problem, result->best.plan);
    const double share = (random() % 11) / 10.0;
    problem.hardware.memory_bytes = min_bytes - 1 + share * (bytes_of_fastest - min_bytes + 1);
  });
}

// Batches that do not divide evenly, and measured or interpolated times, which differ between
// layers.
TEST(SearchBruteForceTest, MeasuredTimesAndUnevenBatches) {
  ForRandomProblems(100, 5, [](PlanProblem& problem, std::mt19937& random) {
    problem.batch = random() % 2 == 0 ? 5 : 7;
    v1::ModelTimes times;
    const auto seconds = [&] { return 1e-6 * (1 + random() % 1000); };
    for (const GraphLayer& layer : problem.graph->layers()) {
      if (random() % 4 == 0) continue;
      for (int part = 0; part < 3; ++part) {
        v1::LayerTime& time = *times.add_time();
        time.set_layer(layer.name);
        time.set_samples(1 + random() % 8);
        time.set_rows(1 + random() % 2);
        time.set_outs(1 + random() % 4);
        time.set_ins(1);
        time.set_forward(seconds());
        time.set_backward(seconds());
      }
    }
    problem.hardware.times = MeasuredLayers(times, *problem.graph);
  });
}

TEST(SearchBruteForceTest, FindsMinimumPlanOfStrategy) {
  ForRandomProblems(100, 3, [](PlanProblem& problem, std::mt19937& random) {
    problem.strategy = AllStrategies()[random() % AllStrategies().size()];
  });
}

TEST(SearchBruteForceTest, FindsMinimumPlanWithPins) {
  ForRandomProblems(100, 4, [](PlanProblem& problem, std::mt19937& random) {
    if (random() % 2 == 0) {
      const std::vector<Mesh> meshes = MeshesFor(problem);
      problem.pins.mesh = meshes[random() % meshes.size()].axes();
    }
    const GraphLayer& layer = (*problem.graph)[random() % problem.graph->size()];
    for (const OpIndex& index : IndicesOf(layer)) {
      const bool may = index.name == "samples" || index.name == "out" || index.name == "in" ||
                       index.name == "height";
      if (may && random() % 2 == 0) problem.pins.layers[layer.name] = index.name;
    }
  });
}

}  // namespace
}  // namespace cadre
