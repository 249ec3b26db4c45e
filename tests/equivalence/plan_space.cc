#include "tests/equivalence/plan_space.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "glog/logging.h"

namespace cadre {
namespace {

constexpr const char* kAxes[] = {"data", "model", "space"};

void Factor(int ranks, std::vector<int>& sizes, std::vector<Mesh>& meshes) {
  if (ranks == 1) {
    std::vector<Mesh::Axis> axes;
    for (size_t i = 0; i < sizes.size(); ++i) axes.push_back({kAxes[i], sizes[i]});
    meshes.emplace_back(std::move(axes));
    return;
  }
  if (sizes.size() == std::size(kAxes)) return;
  for (int size = 2; size <= ranks; ++size) {
    if (ranks % size != 0) continue;
    sizes.push_back(size);
    Factor(ranks / size, sizes, meshes);
    sizes.pop_back();
  }
}

// Pairs of splits of neighbors that no plan contains yet.
class Uncovered {
 public:
  using Pair = std::pair<size_t, size_t>;

  void Add(std::pair<int, int> edge, size_t producers, size_t consumers) {
    for (size_t i = 0; i < producers; ++i) {
      for (size_t j = 0; j < consumers; ++j) pairs_[edge].insert({i, j});
    }
  }

  bool Has(std::pair<int, int> edge, Pair pair) const {
    const auto found = pairs_.find(edge);
    return found != pairs_.end() && found->second.count(pair) > 0;
  }

  // Returns a pair of the edge that has the largest number of uncovered pairs, or null.
  const Pair* Next(std::pair<int, int>* edge) const {
    const Pair* next = nullptr;
    size_t largest = 0;
    for (const auto& [at, left] : pairs_) {
      if (left.size() <= largest) continue;
      largest = left.size();
      *edge = at;
      next = &*left.begin();
    }
    return next;
  }

  void Cover(std::pair<int, int> edge, Pair pair) { pairs_[edge].erase(pair); }

 private:
  std::map<std::pair<int, int>, std::set<Pair>> pairs_;
};

}  // namespace

std::vector<Mesh> MeshesOf(int ranks) {
  std::vector<Mesh> meshes;
  std::vector<int> sizes;
  Factor(ranks, sizes, meshes);
  return meshes;
}

PlanSpace::PlanSpace(const Graph& graph, const Mesh& mesh)
    : graph_(graph), mesh_(mesh), index_(ParameterIndex::FromGraph(graph)) {
  for (const GraphLayer& layer : graph.layers()) splits_.push_back(LegalSplits(layer, mesh));
}

Plan PlanSpace::Make(const std::vector<size_t>& choices) const {
  Plan plan{.mesh = mesh_};
  for (size_t l = 0; l < choices.size(); ++l) {
    auto layouts = LayOut(graph_.layers()[l], mesh_, splits_[l][choices[l]]);
    CHECK(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  return WithBuckets(std::move(plan));
}

// Several small buckets, so that their borders are within parameters of any layer.
Plan PlanSpace::WithBuckets(Plan plan) const {
  plan.buckets = MakeBuckets(plan.layers, mesh_, index_, index_.size() / 5 + 1);
  return plan;
}

LayerLayouts PlanSpace::Place(const GraphLayer& layer, std::mt19937_64& random) const {
  std::vector<AxisCoordinate> at;
  // The axes that are left for splits.
  std::vector<Mesh::Axis> axes = mesh_.axes();
  for (Mesh::Axis& axis : axes) {
    if (layer.shares_weight || axis.size == 1 || random() % 2 == 0) continue;
    at.push_back({.axis = axis.name});
    at.back().coordinate = random() % axis.size;
    axis.size = 1;
  }
  const std::vector<std::vector<IndexSplit>> splits = LegalSplits(layer, Mesh(std::move(axes)));
  auto layouts = LayOut(layer, mesh_, splits[random() % splits.size()], at);
  CHECK(layouts.ok()) << layouts.status();
  return *std::move(layouts);
}

Plan PlanSpace::RandomPlaced(std::mt19937_64& random) const {
  Plan plan{.mesh = mesh_};
  for (const GraphLayer& layer : graph_.layers()) plan.layers.push_back(Place(layer, random));
  return WithBuckets(std::move(plan));
}

Plan PlanSpace::Random(std::mt19937_64& random) const {
  std::vector<size_t> choices;
  for (const auto& splits : splits_) choices.push_back(random() % splits.size());
  return Make(choices);
}

std::vector<Plan> PlanSpace::CoverPairs(std::mt19937_64& random, size_t max_plans) const {
  Uncovered uncovered;
  std::vector<std::vector<int>> producers(splits_.size());
  for (int l = 0; l < graph_.size(); ++l) {
    for (const int producer : graph_[l].inputs) {
      const size_t before = producer < 0 ? 1 : splits_[producer].size();
      uncovered.Add({producer, l}, before, splits_[l].size());
      producers[l].push_back(producer);
    }
  }
  std::vector<Plan> plans;
  std::pair<int, int> edge;
  while (plans.size() < max_plans) {
    const Uncovered::Pair* next = uncovered.Next(&edge);
    if (next == nullptr) break;
    const Uncovered::Pair pair = *next;
    std::vector<size_t> choices(splits_.size());
    for (int l = 0; l < graph_.size(); ++l) {
      const size_t options = splits_[l].size();
      if (l == edge.first || l == edge.second) {
        choices[l] = l == edge.first ? pair.first : pair.second;
        continue;
      }
      // The first split, from a random start, that covers a new pair.
      const size_t start = random() % options;
      choices[l] = start;
      for (size_t k = 0; k < options; ++k) {
        const size_t candidate = (start + k) % options;
        const bool is_new =
            std::any_of(producers[l].begin(), producers[l].end(), [&](int producer) {
              const size_t chosen = producer < 0 ? 0 : choices[producer];
              return uncovered.Has({producer, l}, {chosen, candidate});
            });
        if (!is_new) continue;
        choices[l] = candidate;
        break;
      }
    }
    for (int l = 0; l < graph_.size(); ++l) {
      for (const int producer : producers[l]) {
        const size_t chosen = producer < 0 ? 0 : choices[producer];
        uncovered.Cover({producer, l}, {chosen, choices[l]});
      }
    }
    plans.push_back(Make(choices));
  }
  return plans;
}

}  // namespace cadre
