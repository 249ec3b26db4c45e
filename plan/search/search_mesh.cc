// The sum that a mesh contributes to the search.
//
// A search visits every mesh (hundreds for many ranks), every layer (hundreds), up to twenty
// options per layer, and every pair of options of adjacent layers. Three facts reduce this work:
//
//   classes      Networks repeat layers. Layers of equal kind, shapes and pins form a class
//                (ClassKey) and share options and costs; only measured times are per layer.
//   edge kinds   Edges between equal classes share one table of move costs. Within a table, options
//                with equal layouts share one entry (Distinct).
//   axis sets    Layouts are compared as numbers (compact_layout.h), without names.
//
// Costs of an option: `exposed` seconds (compute, and the move of the model's input into the first
// layer) always count in full; `hidden` seconds (collectives and updates of the layer's parameters,
// as if they were buckets of their own) are scaled by the weight of the current minimisation.
// layer_bytes.h computes the memory. The brute-force test compares the result with the same sum
// computed from the layouts of whole plans.
#include "plan/search/search_mesh.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "model/op_indices.h"
#include "plan/plan_collectives.h"
#include "plan/search/layer_bytes.h"
#include "plan/tape.h"

namespace cadre {
namespace {

std::vector<std::pair<int, int>> PairsOf(const std::vector<SearchGraph::Edge>& edges) {
  std::vector<std::pair<int, int>> pairs;
  for (const SearchGraph::Edge& edge : edges) pairs.emplace_back(edge.producer, edge.consumer);
  return pairs;
}

}  // namespace

// --- The graph ---

SearchGraph::SearchGraph(const PlanProblem& problem)
    : recomputed_(RecomputedLayers(*problem.graph, problem.recomputed)) {
  first_ = problem.graph->consumers(Graph::kInput).front();
  compute_cache_.resize(problem.graph->size());
  FindClasses(problem);
  FindEdges(problem);
  order_ = MinDegreeOrder(size(), PairsOf(edges_));
}

void SearchGraph::FindClasses(const PlanProblem& problem) {
  std::map<std::string, int> known;
  for (int l = 0; l < problem.graph->size(); ++l) {
    const RecomputedLayer& again = recomputed_[l];
    const std::string key = absl::StrCat(ClassKey(problem, l), "/", again.in_block, "/",
                                         again.keeps_output, "/", again.inputs, "/", again.forward);
    const auto [at, is_new] = known.emplace(key, std::ssize(classes_));
    if (is_new) classes_.push_back(ClassOf(problem, l));
    class_of_.push_back(at->second);
  }
}

void SearchGraph::FindEdges(const PlanProblem& problem) {
  const Graph& graph = *problem.graph;
  const std::vector<bool> needs_gradient = LayersWithGradient(graph);
  // If the inputs of a layer have different shapes, their edges are of different kinds.
  std::map<std::tuple<int, int, bool, bool, std::vector<int64_t>>, int> kinds;
  for (int l = 0; l < graph.size(); ++l) {
    for (int i = 0; i < std::ssize(graph[l].inputs); ++i) {
      Edge edge{.producer = graph[l].inputs[i], .consumer = l, .input = i};
      edge.of_model_input = edge.producer == Graph::kInput;
      if (edge.of_model_input) edge.producer = first_;
      if (edge.of_model_input && edge.producer == l) continue;
      edge.backward = !edge.of_model_input && needs_gradient[edge.producer];
      edge.kind = kinds
                      .emplace(std::tuple(class_of(edge.producer), class_of(l), edge.of_model_input,
                                          edge.backward, graph[l].input_shapes[i].dims()),
                               std::ssize(kinds))
                      .first->second;
      edges_.push_back(edge);
    }
  }
  edge_kinds_ = std::ssize(kinds);
}

double SearchGraph::PartSeconds(const PlanProblem& problem, int layer,
                                const LayerPart& part) const {
  const auto [at, is_new] = compute_cache_[layer].emplace(part, 0);
  if (is_new) {
    const LayerSeconds seconds = problem.hardware.SecondsOf((*problem.graph)[layer], layer, part);
    at->second = seconds.forward * (recomputed_[layer].forward ? 2 : 1) + seconds.backward;
  }
  return at->second;
}

// --- Layers ---

MeshSearch::MeshSearch(const PlanProblem& problem, const SearchGraph& graph, Mesh mesh, Terms terms)
    : problem_(problem),
      graph_(graph),
      mesh_(std::move(mesh)),
      moves_(mesh_, problem.hardware),
      samples_(1.0 * problem.batch / problem.micro_batches) {
  std::vector<Costs> by_class;
  for (const LayerClass& layer_class : graph.classes()) {
    options_.push_back(OptionsOf(layer_class, moves_.mesh()));
    by_class.push_back(ClassCosts(layer_class, options_.back(), terms));
  }
  for (int l = 0; l < graph.size(); ++l) {
    if (options(l).empty() && unsatisfied_ < 0) unsatisfied_ = l;
    costs_.push_back(by_class[graph.class_of(l)]);
  }
  if (unsatisfied_ < 0 && terms == Terms::kAll) AddComputeSeconds();
}

bool MeshSearch::IsStrategyImpossible(int layer) const {
  const LayerClass& layer_class = class_of(layer);
  return layer_class.pinned_index < 0 && layer_class.strategy_index >= 0 &&
         !StrategyApplies(layer_class, moves_.mesh());
}

// The part of a layer's parameters that a rank holds.
struct MeshSearch::LocalParameters {
  // Weights, gradients and state.
  int64_t bytes = 0;
  // Parts of an attention's heads, which are the first dimension of its first parameter; not used
  // for other layers.
  int64_t heads = 1;
  // Elements that are reduced over the same axes and owned along the same axes.
  struct EqualAxes {
    AxisSet sums = 0;
    AxisSet owners = 0;
    int64_t elements = 0;
  };
  std::vector<EqualAxes> by_axes;
};

MeshSearch::Costs MeshSearch::ClassCosts(const LayerClass& layer_class,
                                         const std::vector<LayerOption>& options,
                                         Terms terms) const {
  const int layer = layer_class.example - problem_.graph->layers().data();
  const bool seconds = terms == Terms::kAll;
  // Measured times differ between the layers of a class (AddComputeSeconds).
  const bool modelled = problem_.hardware.times.empty();
  Costs costs;
  for (const LayerOption& option : options) {
    const LocalParameters parameters = ParametersOf(layer_class, option);
    costs.exposed.push_back(seconds && modelled ? ComputeSeconds(layer, option) : 0);
    costs.hidden.push_back(seconds ? CollectiveCost(layer_class, parameters) : 0);
    costs.bytes.push_back(parameters.bytes +
                          ActivationBytesOf(layer_class, option, parameters.heads));
  }
  return costs;
}

MeshSearch::LocalParameters MeshSearch::ParametersOf(const LayerClass& layer_class,
                                                     const LayerOption& option) const {
  const GraphLayer& layer = *layer_class.example;
  const CompactMesh& mesh = moves_.mesh();
  const AxisSet all = (AxisSet{1} << mesh.axes()) - 1;
  LocalParameters local;
  for (size_t p = 0; p < layer.parameters.size(); ++p) {
    const Shape& shape = layer.parameters[p].shape;
    AxisSet sums = 0;
    AxisSet owners = all;
    std::array<int64_t, kMaxDimensions> parts = {1, 1, 1, 1};
    for (int a = 0; a < mesh.axes(); ++a) {
      const int index = option.index[a];
      if (index < 0) continue;
      const IndexPlace& place = layer_class.indices[index].parameters[p];
      const AxisSet bit = AxisSet{1} << a;
      if (place.kind == IndexPlace::Kind::kSummed) sums |= bit;
      if (place.kind != IndexPlace::Kind::kDimension) continue;
      owners &= ~bit;
      parts[place.dimension] *= mesh.size(a);
    }
    int64_t elements = 1;
    for (int d = 0; d < shape.rank(); ++d) elements *= LargestPart(shape[d], parts[d]);
    const int64_t owning = mesh.Ranks(owners);
    local.bytes += ParameterBytes(problem_, elements, owning);
    if (p == 0) local.heads = parts[0];
    const auto same =
        std::find_if(local.by_axes.begin(), local.by_axes.end(),
                     [&](const auto& each) { return each.sums == sums && each.owners == owners; });
    if (same == local.by_axes.end()) {
      local.by_axes.push_back({sums, owners, elements});
    } else {
      same->elements += elements;
    }
  }
  return local;
}

// Seconds to reduce a layer's gradients, to update its weights and to gather them.
double MeshSearch::CollectiveCost(const LayerClass& layer_class,
                                  const LocalParameters& parameters) const {
  const CompactMesh& mesh = moves_.mesh();
  double seconds = 0;
  for (const LocalParameters::EqualAxes& each : parameters.by_axes) {
    const int own = mesh.Ranks(each.owners);
    seconds += MinCollectiveSeconds(problem_.collectives, *layer_class.example, each.elements,
                                    mesh.Ranks(each.sums), own, moves_.LinkOf(each.sums),
                                    moves_.LinkOf(each.owners));
    seconds += problem_.hardware.update_seconds * LargestPart(each.elements, own);
  }
  return seconds;
}

int64_t MeshSearch::ActivationBytesOf(const LayerClass& layer_class, const LayerOption& option,
                                      int64_t heads) const {
  const auto parts_of = [&](const CompactLayout& layout) {
    Parts parts;
    for (size_t d = 0; d < parts.size(); ++d) {
      parts[d] = moves_.mesh().Ranks(layout.split[d]);
    }
    return parts;
  };
  const Parts input = parts_of(option.input);
  const int layer = layer_class.example - problem_.graph->layers().data();
  return ActivationBytes(problem_, *layer_class.example, {&input, 1}, parts_of(option.output),
                         heads, graph_.recomputed(layer));
}

double MeshSearch::ComputeSeconds(int layer, const LayerOption& option) const {
  const LayerClass& layer_class = class_of(layer);
  LayerPart part{.samples = LargestMicroBatch(problem_)};
  for (size_t i = 0; i < layer_class.indices.size(); ++i) {
    part.Split(layer_class.indices[i].name, PartsOf(moves_.mesh(), option.index, i));
  }
  return graph_.PartSeconds(problem_, layer, part) * problem_.micro_batches;
}

void MeshSearch::AddComputeSeconds() {
  for (int l = 0; l < graph_.size(); ++l) {
    Costs& costs = costs_[l];
    for (size_t o = 0; o < costs.exposed.size(); ++o) {
      const LayerOption& option = options(l)[o];
      if (!problem_.hardware.times.empty()) costs.exposed[o] += ComputeSeconds(l, option);
      if (l == graph_.first()) costs.exposed[o] += ModelInputSeconds(option);
    }
  }
}

// The loader delivers whole samples.
CompactLayout MeshSearch::LoaderLayout(const LayerOption& first) const {
  CompactLayout given;
  given.split[0] = first.input.split[0];
  return given;
}

double MeshSearch::ModelInputSeconds(const LayerOption& option) const {
  const GraphLayer& layer = (*problem_.graph)[graph_.first()];
  double seconds = 0;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    if (layer.inputs[i] != Graph::kInput) continue;
    seconds += moves_
                   .Forward(ExtentsOf(samples_, layer.input_shapes[i]), LoaderLayout(option),
                            option.input, HaloOf(layer))
                   .seconds;
  }
  return seconds * (graph_.recomputed(graph_.first()).inputs ? 2 : 1) * problem_.micro_batches;
}

double MeshSearch::LowerBound(double weight) const {
  double sum = 0;
  for (const Costs& costs : costs_) {
    double minimum = costs.Seconds(0, weight);
    for (size_t o = 1; o < costs.exposed.size(); ++o) {
      minimum = std::min(minimum, costs.Seconds(o, weight));
    }
    sum += minimum;
  }
  return sum;
}

int64_t MeshSearch::MinBytes() const {
  int64_t sum = 0;
  for (const Costs& costs : costs_)
    sum += *std::min_element(costs.bytes.begin(), costs.bytes.end());
  return sum;
}

std::pair<int, int64_t> MeshSearch::LargestLayer() const {
  std::pair<int, int64_t> largest = {0, -1};
  for (int l = 0; l < graph_.size(); ++l) {
    const std::vector<int64_t>& bytes = costs_[l].bytes;
    const int64_t minimum = *std::min_element(bytes.begin(), bytes.end());
    if (minimum > largest.second) largest = {l, minimum};
  }
  return largest;
}

// --- Moves ---

namespace {

// The distinct values among those added, and the position of each added value among them.
template <typename Value>
struct Distinct {
  std::vector<Value> values;
  std::vector<size_t> position_of;

  void Add(const Value& value) {
    const auto found = std::find(values.begin(), values.end(), value);
    position_of.push_back(found - values.begin());
    if (found == values.end()) values.push_back(value);
  }
};

// The layout in which a consumer needs its input, and the layout of the gradient that it produces.
using ConsumerLayouts = std::pair<CompactLayout, CompactLayout>;

}  // namespace

std::vector<double> MeshSearch::EdgeTable(const SearchGraph::Edge& edge) const {
  const GraphLayer& layer = (*problem_.graph)[edge.consumer];
  const Extents whole = ExtentsOf(samples_, layer.input_shapes[edge.input]);
  const Halo halo = HaloOf(layer);
  Distinct<CompactLayout> produced;
  for (const LayerOption& option : options(edge.producer)) {
    produced.Add(edge.of_model_input ? LoaderLayout(option) : option.output);
  }
  Distinct<ConsumerLayouts> consumed;
  for (const LayerOption& option : options(edge.consumer)) {
    CompactLayout gradient = option.input;
    gradient.partial = option.gradient_partial;
    consumed.Add({option.input, gradient});
  }
  std::vector<double> seconds;
  for (const CompactLayout& from : produced.values) {
    CompactLayout complete = from;
    complete.partial = 0;
    for (const auto& [input, gradient] : consumed.values) {
      double both = moves_.Forward(whole, from, input, halo).seconds *
                    (graph_.recomputed(edge.consumer).inputs ? 2 : 1);
      if (edge.backward) both += moves_.Backward(whole, gradient, complete, halo).seconds;
      seconds.push_back(both * problem_.micro_batches);
    }
  }
  std::vector<double> table;
  table.reserve(produced.position_of.size() * consumed.position_of.size());
  for (const size_t producer : produced.position_of) {
    for (const size_t consumer : consumed.position_of) {
      table.push_back(seconds[producer * consumed.values.size() + consumer]);
    }
  }
  return table;
}

void MeshSearch::BuildEdges() {
  has_tables_ = true;
  tables_.resize(graph_.edge_kinds());
  for (const SearchGraph::Edge& edge : graph_.edges()) {
    std::vector<double>& table = tables_[edge.kind];
    if (table.empty()) table = EdgeTable(edge);
    sum_.pairs.push_back({edge.producer, edge.consumer, &table});
  }
  for (const Costs& costs : costs_) sum_.bytes.push_back(costs.bytes);
}

const SumProblem& MeshSearch::Sum(double weight) {
  if (!has_tables_) BuildEdges();
  sum_.unary.clear();
  for (const Costs& costs : costs_) {
    std::vector<double>& unary = sum_.unary.emplace_back();
    for (size_t o = 0; o < costs.exposed.size(); ++o) {
      unary.push_back(costs.Seconds(o, weight));
    }
  }
  return sum_;
}

// --- The result ---

std::vector<IndexSplit> MeshSearch::SplitsOf(int layer, int option) const {
  return cadre::SplitsOf(class_of(layer), moves_.mesh(), options(layer)[option]);
}

Plan MeshSearch::PlanOf(std::span<const int> choice) const {
  Plan plan{.mesh = mesh_, .recomputed = problem_.recomputed};
  for (int l = 0; l < graph_.size(); ++l) {
    auto layouts = LayOut((*problem_.graph)[l], mesh_, SplitsOf(l, choice[l]));
    CHECK(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  return plan;
}

}  // namespace cadre
