// The search on one mesh: the options of each layer, the costs of these options and of the moves
// between layers, as a sum to minimise (elimination.h).
//
// SearchGraph and MeshSearch borrow the problem; MeshSearch borrows the SearchGraph.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plan/layer_part.h"
#include "plan/plan.h"
#include "plan/recomputation.h"
#include "plan/search/elimination.h"
#include "plan/search/layer_options.h"
#include "plan/search/move_model.h"
#include "plan/search/plan_problem.h"
#include "tensor/mesh.h"

namespace cadre {

// The part of the search's input that depends on the graph alone and is shared by all meshes.
class SearchGraph {
 public:
  // A move of a layer's output to a consumer; or a move of the model's input to a consumer other
  // than the first one, from the layout in which the first one receives it.
  struct Edge {
    int producer = 0;
    int consumer = 0;
    int input = 0;
    bool of_model_input = false;
    // Whether backward moves a gradient in the opposite direction.
    bool backward = false;
    // Equal for edges with equal move costs.
    int kind = 0;
  };

  explicit SearchGraph(const PlanProblem& problem);

  int size() const { return std::ssize(class_of_); }
  int class_of(int layer) const { return class_of_[layer]; }
  const std::vector<LayerClass>& classes() const { return classes_; }
  const std::vector<Edge>& edges() const { return edges_; }
  int edge_kinds() const { return edge_kinds_; }
  const EliminationOrder& order() const { return order_; }
  // The first layer that takes the model's input. The loader delivers the input to this layer.
  int first() const { return first_; }
  const RecomputedLayer& recomputed(int layer) const { return recomputed_[layer]; }
  // Seconds of forward and backward of a part of a layer, and of forward again if it is recomputed.
  // Cached, since meshes share many parts.
  double PartSeconds(const PlanProblem& problem, int layer, const LayerPart& part) const;

 private:
  void FindClasses(const PlanProblem& problem);
  void FindEdges(const PlanProblem& problem);

  const std::vector<RecomputedLayer> recomputed_;
  std::vector<LayerClass> classes_;
  std::vector<int> class_of_;
  std::vector<Edge> edges_;
  int edge_kinds_ = 0;
  int first_ = 0;
  EliminationOrder order_;
  // By layer.
  mutable std::vector<std::map<LayerPart, double>> compute_cache_;
};

// The search on one mesh.
class MeshSearch {
 public:
  enum class Terms {
    kAll,
    // Memory only; seconds are 0.
    kBytesOnly,
  };
  MeshSearch(const PlanProblem& problem, const SearchGraph& graph, Mesh mesh,
             Terms terms = Terms::kAll);
  MeshSearch(const MeshSearch&) = delete;
  MeshSearch& operator=(const MeshSearch&) = delete;

  const Mesh& mesh() const { return mesh_; }
  // A layer with a pin that this mesh cannot satisfy; -1: there is none.
  int unsatisfied() const { return unsatisfied_; }

  // Whether the strategy prescribes a split of the layer that is impossible on this mesh.
  bool IsStrategyImpossible(int layer) const;

  // A lower bound on the cost of a plan on this mesh.
  double LowerBound(double weight) const;
  // The minimum memory of a plan, and the layer that needs the largest part of it.
  int64_t MinBytes() const;
  std::pair<int, int64_t> LargestLayer() const;

  // `weight` scales the seconds that may overlap with compute. The result borrows this object and
  // is valid until the next call.
  const SumProblem& Sum(double weight);

  // Layouts, without buckets.
  Plan PlanOf(std::span<const int> choice) const;
  std::vector<IndexSplit> SplitsOf(int layer, int option) const;

 private:
  // By option of a layer: seconds that are always exposed, seconds that may overlap, and memory.
  struct Costs {
    std::vector<double> exposed;
    std::vector<double> hidden;
    std::vector<int64_t> bytes;

    double Seconds(size_t option, double weight) const {
      return exposed[option] + weight * hidden[option];
    }
  };

  const LayerClass& class_of(int layer) const { return graph_.classes()[graph_.class_of(layer)]; }
  const std::vector<LayerOption>& options(int layer) const {
    return options_[graph_.class_of(layer)];
  }
  // All costs except measured times.
  Costs ClassCosts(const LayerClass& layer_class, const std::vector<LayerOption>& options,
                   Terms terms) const;
  struct LocalParameters;
  LocalParameters ParametersOf(const LayerClass& layer_class, const LayerOption& option) const;
  double CollectiveCost(const LayerClass& layer_class, const LocalParameters& parameters) const;
  int64_t ActivationBytesOf(const LayerClass& layer_class, const LayerOption& option,
                            int64_t heads) const;
  double ComputeSeconds(int layer, const LayerOption& option) const;
  double ModelInputSeconds(const LayerOption& option) const;
  CompactLayout LoaderLayout(const LayerOption& first) const;
  void AddComputeSeconds();
  void BuildEdges();
  std::vector<double> EdgeTable(const SearchGraph::Edge& edge) const;

  const PlanProblem& problem_;
  const SearchGraph& graph_;
  Mesh mesh_;
  MoveModel moves_;
  double samples_ = 1;  // of a micro-batch
  int unsatisfied_ = -1;
  // By class.
  std::vector<std::vector<LayerOption>> options_;
  // By layer.
  std::vector<Costs> costs_;
  // By kind of edge; computed on first use.
  bool has_tables_ = false;
  std::vector<std::vector<double>> tables_;
  SumProblem sum_;
};

// The error of a search in which no plan fits into memory: ResourceExhausted with the minimum
// memory of a plan, the layer that needs the largest part of it, the number of bytes missing and,
// if `explains` and found, the minimum number of ranks that suffices. Requires: at least one mesh,
// and no plan on any of them fits.
absl::Status NoPlanFits(const PlanProblem& problem,
                        const std::vector<std::unique_ptr<MeshSearch>>& meshes, bool explains);

}  // namespace cadre
