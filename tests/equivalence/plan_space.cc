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

// Splits of two neighbours that no plan has had yet.
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

  // Some pair that is left on the edge with most of them, or null.
  const Pair* Next(std::pair<int, int>* edge) const {
    const Pair* next = nullptr;
    size_t most = 0;
    for (const auto& [at, left] : pairs_) {
      if (left.size() <= most) continue;
      most = left.size();
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

double PlanSpace::size() const {
  double size = 1;
  for (const auto& splits : splits_) size *= static_cast<double>(splits.size());
  return size;
}

Plan PlanSpace::Make(const std::vector<size_t>& choices) const {
  Plan plan{.mesh = mesh_};
  for (size_t l = 0; l < choices.size(); ++l) {
    auto layouts = LayOut(graph_.layers()[l], mesh_, splits_[l][choices[l]]);
    CHECK(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  // Several small buckets, so that their borders fall anywhere.
  plan.buckets = MakeBuckets(plan.layers, mesh_, index_, index_.size() / 5 + 1);
  return plan;
}

Plan PlanSpace::Random(std::mt19937_64& random) const {
  std::vector<size_t> choices;
  for (const auto& splits : splits_) choices.push_back(random() % splits.size());
  return Make(choices);
}

std::vector<Plan> PlanSpace::CoverPairs(std::mt19937_64& random, size_t most) const {
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
  while (plans.size() < most) {
    const Uncovered::Pair* wanted = uncovered.Next(&edge);
    if (wanted == nullptr) break;
    const Uncovered::Pair pair = *wanted;
    std::vector<size_t> choices(splits_.size());
    for (int l = 0; l < graph_.size(); ++l) {
      const auto at = static_cast<size_t>(l);
      const size_t options = splits_[at].size();
      if (l == edge.first || l == edge.second) {
        choices[at] = l == edge.first ? pair.first : pair.second;
        continue;
      }
      // Of a few tries from a random start, the first that covers something new.
      const size_t start = random() % options;
      choices[at] = start;
      for (size_t k = 0; k < options; ++k) {
        const size_t candidate = (start + k) % options;
        const bool news =
            std::any_of(producers[at].begin(), producers[at].end(), [&](int producer) {
              const size_t chosen = producer < 0 ? 0 : choices[producer];
              return uncovered.Has({producer, l}, {chosen, candidate});
            });
        if (!news) continue;
        choices[at] = candidate;
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
