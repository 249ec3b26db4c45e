// One mesh's part of the search: the ways to cut each layer on it, what they cost, and what the
// moves between them cost, as a sum to minimise (elimination.h).
//
// Layers of one class, and moves between layers of the same two classes, are worked out once for a
// mesh; what depends on the graph alone (SearchGraph) once for all meshes.
//
// SearchGraph and MeshSearch borrow the problem, and MeshSearch the SearchGraph. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "coordinator/plan/elimination.h"
#include "coordinator/plan/layer_options.h"
#include "coordinator/plan/move_words.h"
#include "coordinator/plan/plan_problem.h"
#include "spec/layer_part.h"
#include "spec/plan.h"
#include "tensor/mesh.h"

namespace cadre {

class SearchGraph {
 public:
  // A move of an output to a layer that takes it, or of the model's input from the first layer that
  // takes it, whose split of the samples says where it lies, to another.
  struct Edge {
    int producer = 0;
    int consumer = 0;
    int input = 0;
    bool of_model_input = false;
    // Whether the gradient goes back.
    bool backward = false;
    // Equal for edges whose moves cost the same.
    int kind = 0;
  };

  explicit SearchGraph(const PlanProblem& problem);

  int size() const { return static_cast<int>(class_of_.size()); }
  int class_of(int layer) const { return class_of_[static_cast<size_t>(layer)]; }
  const std::vector<LayerClass>& classes() const { return classes_; }
  const std::vector<Edge>& edges() const { return edges_; }
  int edge_kinds() const { return edge_kinds_; }
  const EliminationOrder& order() const { return order_; }
  // The first layer that takes the model's input, which gets it as the loader gives it.
  int first() const { return first_; }
  // Forward and backward of a part of a layer. Meshes have many parts in common.
  double ComputeSeconds(const PlanProblem& problem, int layer, const LayerPart& part) const;

 private:
  void FindClasses(const PlanProblem& problem);
  void FindEdges(const PlanProblem& problem);

  std::vector<LayerClass> classes_;
  std::vector<int> class_of_;
  std::vector<Edge> edges_;
  int edge_kinds_ = 0;
  int first_ = 0;
  EliminationOrder order_;
  // By layer: what was asked for.
  mutable std::vector<std::map<LayerPart, double>> computing_;
};

class MeshSearch {
 public:
  enum class Look {
    kAll,
    // No seconds.
    kBytes,
  };
  MeshSearch(const PlanProblem& problem, const SearchGraph& graph, Mesh mesh,
             Look look = Look::kAll);
  MeshSearch(const MeshSearch&) = delete;
  MeshSearch& operator=(const MeshSearch&) = delete;

  const Mesh& mesh() const { return mesh_; }
  // A layer whose pin cannot be fulfilled on this mesh; -1: all can.
  int unfulfilled() const { return unfulfilled_; }

  // The strategy says how to cut the layer, which is not possible on this mesh.
  bool IsFreed(int layer) const;

  // No plan on this mesh costs less.
  double LowerBound(double weight) const;
  // Of the plan that needs least memory, and what its layer that needs most does.
  int64_t LeastBytes() const;
  std::pair<int, int64_t> LargestLayer() const;

  // Borrows this.
  const SumProblem& Sum(double weight);

  // Layouts, without buckets.
  Plan PlanOf(std::span<const int> choice) const;
  std::vector<IndexSplit> SplitsOf(int layer, int option) const;

 private:
  // By option of a layer: seconds that are never hidden, and those that may be.
  struct Costs {
    std::vector<double> open;
    std::vector<double> hidden;
    std::vector<int64_t> bytes;
  };

  const std::vector<LayerOption>& options(int layer) const;
  // Of a class: all but measured times.
  Costs ClassCosts(const LayerClass& of, const std::vector<LayerOption>& options, Look look) const;
  struct LocalParameters;
  LocalParameters ParametersOf(const LayerClass& of, const LayerOption& option) const;
  double CollectiveCost(const LayerClass& of, const LocalParameters& parameters) const;
  // Activations.
  int64_t HeldWords(const LayerClass& of, const LayerOption& option, int64_t heads) const;
  double ComputeSeconds(int layer, const LayerOption& option) const;
  double GivenInputSeconds(const LayerOption& option) const;
  CompactLayout GivenInput(const LayerOption& first) const;
  void AddComputing();
  void BuildEdges();
  std::vector<double> EdgeTable(const SearchGraph::Edge& edge) const;

  const PlanProblem& problem_;
  const SearchGraph& graph_;
  Mesh mesh_;
  MoveModel moves_;
  double samples_ = 1;  // of a micro-batch
  int unfulfilled_ = -1;
  // By class.
  std::vector<std::vector<LayerOption>> options_;
  // By layer.
  std::vector<Costs> costs_;
  // By kind of edge; worked out when they are first asked for.
  bool has_tables_ = false;
  std::vector<std::vector<double>> tables_;
  SumProblem sum_;
};

}  // namespace cadre
