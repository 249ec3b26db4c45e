#include "coordinator/plan/search_mesh.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>

#include "coordinator/cost/communication_cost.h"
#include "coordinator/plan/layer_bytes.h"
#include "coordinator/plan/layer_cost.h"
#include "spec/op_indices.h"
#include "spec/tape.h"

namespace cadre {
namespace {

size_t At(int i) { return static_cast<size_t>(i); }

std::vector<std::pair<int, int>> PairsOf(const std::vector<SearchGraph::Edge>& edges) {
  std::vector<std::pair<int, int>> pairs;
  for (const SearchGraph::Edge& edge : edges) pairs.emplace_back(edge.producer, edge.consumer);
  return pairs;
}

}  // namespace

// --- The graph ---

SearchGraph::SearchGraph(const PlanProblem& problem) : order_(0, {}) {
  first_ = problem.graph->consumers(Graph::kInput).front();
  computing_.resize(At(problem.graph->size()));
  FindClasses(problem);
  FindEdges(problem);
  order_ = EliminationOrder(size(), PairsOf(edges_));
}

void SearchGraph::FindClasses(const PlanProblem& problem) {
  std::map<std::string, int> known;
  for (int l = 0; l < problem.graph->size(); ++l) {
    const auto [at, is_new] =
        known.emplace(ClassKey(problem, l), static_cast<int>(classes_.size()));
    if (is_new) classes_.push_back(ClassOf(problem, l));
    class_of_.push_back(at->second);
  }
}

void SearchGraph::FindEdges(const PlanProblem& problem) {
  const Graph& graph = *problem.graph;
  const std::vector<bool> learns = LayersWithGradient(graph);
  // Inputs of a layer may be of different shapes: then they are of different kinds.
  std::map<std::tuple<int, int, bool, bool, std::vector<int64_t>>, int> kinds;
  for (int l = 0; l < graph.size(); ++l) {
    for (size_t i = 0; i < graph[l].inputs.size(); ++i) {
      Edge edge{.producer = graph[l].inputs[i], .consumer = l, .input = static_cast<int>(i)};
      edge.of_model_input = edge.producer == Graph::kInput;
      if (edge.of_model_input) edge.producer = first_;
      if (edge.of_model_input && edge.producer == l) continue;
      edge.backward = !edge.of_model_input && learns[At(edge.producer)];
      edge.kind = kinds
                      .emplace(std::tuple(class_of(edge.producer), class_of(l), edge.of_model_input,
                                          edge.backward, graph[l].input_shapes[i].dims()),
                               static_cast<int>(kinds.size()))
                      .first->second;
      edges_.push_back(edge);
    }
  }
  edge_kinds_ = static_cast<int>(kinds.size());
}

double SearchGraph::ComputeSeconds(const PlanProblem& problem, int layer,
                                   const LayerPart& part) const {
  const auto [at, is_new] = computing_[At(layer)].emplace(part, 0);
  if (is_new) {
    const LayerSeconds seconds = problem.machine.SecondsOf((*problem.graph)[layer], layer, part);
    at->second = seconds.forward + seconds.backward;
  }
  return at->second;
}

// --- Layers ---

MeshSearch::MeshSearch(const PlanProblem& problem, const SearchGraph& graph, Mesh mesh, Look look)
    : problem_(problem),
      graph_(graph),
      mesh_(std::move(mesh)),
      moves_(mesh_, problem.machine),
      samples_(static_cast<double>(problem.batch) / problem.micro_batches) {
  std::vector<Costs> by_class;
  for (const LayerClass& of : graph.classes()) {
    options_.push_back(OptionsOf(of, moves_.mesh()));
    by_class.push_back(ClassCosts(of, options_.back(), look));
  }
  for (int l = 0; l < graph.size(); ++l) {
    if (options(l).empty() && unfulfilled_ < 0) unfulfilled_ = l;
    costs_.push_back(by_class[At(graph.class_of(l))]);
  }
  if (unfulfilled_ < 0 && look == Look::kAll) AddComputing();
}

const std::vector<LayerOption>& MeshSearch::options(int layer) const {
  return options_[At(graph_.class_of(layer))];
}

bool MeshSearch::IsFreed(int layer) const {
  const LayerClass& of = graph_.classes()[At(graph_.class_of(layer))];
  return of.pinned < 0 && of.wanted >= 0 && !IsApplied(of, moves_.mesh());
}

// What a rank holds of a layer's parameters.
struct MeshSearch::LocalParameters {
  // Weights, gradients and state.
  int64_t words = 0;
  // Parts of the first dimension of the first.
  int64_t heads = 1;
  // Elements that are reduced over the same axes and owned along the same.
  struct Alike {
    AxisSet sums = 0;
    AxisSet owners = 0;
    int64_t elements = 0;
  };
  std::vector<Alike> alike;
};

MeshSearch::Costs MeshSearch::ClassCosts(const LayerClass& of,
                                         const std::vector<LayerOption>& options, Look look) const {
  const auto layer = static_cast<int>(of.example - problem_.graph->layers().data());
  const bool seconds = look == Look::kAll;
  const bool alike = problem_.machine.times.empty();
  Costs costs;
  for (const LayerOption& option : options) {
    const LocalParameters parameters = ParametersOf(of, option);
    costs.open.push_back(seconds && alike ? ComputeSeconds(layer, option) : 0);
    costs.hidden.push_back(seconds ? CollectiveCost(of, parameters) : 0);
    costs.bytes.push_back(kBytesPerWord *
                          (parameters.words + HeldWords(of, option, parameters.heads)));
  }
  return costs;
}

MeshSearch::LocalParameters MeshSearch::ParametersOf(const LayerClass& of,
                                                     const LayerOption& option) const {
  const GraphLayer& layer = *of.example;
  const CompactMesh& mesh = moves_.mesh();
  const AxisSet all = (AxisSet{1} << mesh.axes()) - 1;
  LocalParameters local;
  for (size_t p = 0; p < layer.parameters.size(); ++p) {
    const Shape& shape = layer.parameters[p].shape;
    AxisSet sums = 0;
    AxisSet owners = all;
    std::array<int64_t, kMostDimensions> parts = {1, 1, 1, 1};
    for (int a = 0; a < mesh.axes(); ++a) {
      const int index = option.index[At(a)];
      if (index < 0) continue;
      const IndexPlace& place = of.indices[At(index)].parameters[p];
      const AxisSet bit = AxisSet{1} << a;
      if (place.kind == IndexPlace::Kind::kSummed) sums |= bit;
      if (place.kind != IndexPlace::Kind::kDimension) continue;
      owners &= ~bit;
      parts[At(place.dimension)] *= mesh.size(a);
    }
    int64_t elements = 1;
    for (int d = 0; d < shape.rank(); ++d) elements *= LargestPart(shape[d], parts[At(d)]);
    const auto owning = static_cast<int64_t>(mesh.Ranks(owners));
    local.words += ParameterWords(problem_, elements, owning);
    if (p == 0) local.heads = parts[0];
    const auto same = std::find_if(local.alike.begin(), local.alike.end(), [&](const auto& each) {
      return each.sums == sums && each.owners == owners;
    });
    if (same == local.alike.end()) {
      local.alike.push_back({sums, owners, elements});
    } else {
      same->elements += elements;
    }
  }
  return local;
}

// Seconds to reduce, update and gather.
double MeshSearch::CollectiveCost(const LayerClass& of, const LocalParameters& parameters) const {
  const CompactMesh& mesh = moves_.mesh();
  double seconds = 0;
  for (const LocalParameters::Alike& each : parameters.alike) {
    const auto own = static_cast<int>(mesh.Ranks(each.owners));
    seconds += CollectiveSeconds(problem_.collectives, *of.example, each.elements,
                                 static_cast<int>(mesh.Ranks(each.sums)), own,
                                 moves_.LinkOf(each.sums), moves_.LinkOf(each.owners));
    seconds +=
        problem_.machine.update_seconds * static_cast<double>(LargestPart(each.elements, own));
  }
  return seconds;
}

int64_t MeshSearch::HeldWords(const LayerClass& of, const LayerOption& option,
                              int64_t heads) const {
  const auto parts_of = [&](const CompactLayout& layout) {
    Parts parts;
    for (size_t d = 0; d < parts.size(); ++d) {
      parts[d] = static_cast<int64_t>(moves_.mesh().Ranks(layout.split[d]));
    }
    return parts;
  };
  const Parts input = parts_of(option.input);
  return ActivationWords(problem_, *of.example, {&input, 1}, parts_of(option.output), heads);
}

// As spec/layer_part.h counts.
double MeshSearch::ComputeSeconds(int layer, const LayerOption& option) const {
  const LayerClass& of = graph_.classes()[At(graph_.class_of(layer))];
  LayerPart part{.samples = SamplesAtOnce(problem_)};
  int samples = 1;
  for (int a = 0; a < moves_.mesh().axes(); ++a) {
    const int index = option.index[At(a)];
    if (index < 0) continue;
    const std::string& name = of.indices[At(index)].name;
    const int size = moves_.mesh().size(a);
    if (name == "samples") {
      samples *= size;
    } else if (name == "height" || name == "tokens") {
      part.rows *= size;
    } else if (name == "in") {
      part.ins *= size;
    } else {
      part.outs *= size;
    }
  }
  part.samples = LargestPart(part.samples, samples);
  return graph_.ComputeSeconds(problem_, layer, part) * problem_.micro_batches;
}

void MeshSearch::AddComputing() {
  for (int l = 0; l < graph_.size(); ++l) {
    Costs& costs = costs_[At(l)];
    for (size_t o = 0; o < costs.open.size(); ++o) {
      const LayerOption& option = options(l)[o];
      // Layers of one class differ in what was measured of them.
      if (!problem_.machine.times.empty()) costs.open[o] += ComputeSeconds(l, option);
      if (l == graph_.first()) costs.open[o] += GivenInputSeconds(option);
    }
  }
}

// Whole samples.
CompactLayout MeshSearch::GivenInput(const LayerOption& first) const {
  CompactLayout given;
  given.split[0] = first.input.split[0];
  return given;
}

double MeshSearch::GivenInputSeconds(const LayerOption& option) const {
  const GraphLayer& layer = (*problem_.graph)[graph_.first()];
  double seconds = 0;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    if (layer.inputs[i] != Graph::kInput) continue;
    seconds += moves_
                   .Forward(ExtentsOf(samples_, layer.input_shapes[i]), GivenInput(option),
                            option.input, HaloOf(layer))
                   .seconds;
  }
  return seconds * problem_.micro_batches;
}

double MeshSearch::LowerBound(double weight) const {
  double sum = 0;
  for (const Costs& costs : costs_) {
    double least = costs.open[0] + weight * costs.hidden[0];
    for (size_t o = 1; o < costs.open.size(); ++o) {
      least = std::min(least, costs.open[o] + weight * costs.hidden[o]);
    }
    sum += least;
  }
  return sum;
}

int64_t MeshSearch::LeastBytes() const {
  int64_t sum = 0;
  for (const Costs& costs : costs_)
    sum += *std::min_element(costs.bytes.begin(), costs.bytes.end());
  return sum;
}

std::pair<int, int64_t> MeshSearch::LargestLayer() const {
  std::pair<int, int64_t> largest = {0, -1};
  for (int l = 0; l < graph_.size(); ++l) {
    const std::vector<int64_t>& bytes = costs_[At(l)].bytes;
    const int64_t least = *std::min_element(bytes.begin(), bytes.end());
    if (least > largest.second) largest = {l, least};
  }
  return largest;
}

// --- Moves ---

namespace {

// The different ones among values, and which of them each is.
template <typename Value>
struct Distinct {
  std::vector<Value> values;
  std::vector<size_t> of;

  void Add(const Value& value) {
    const auto found = std::find(values.begin(), values.end(), value);
    of.push_back(static_cast<size_t>(found - values.begin()));
    if (found == values.end()) values.push_back(value);
  }
};

// What a consumer takes, and the layout in which it leaves the gradient.
using Taken = std::pair<CompactLayout, CompactLayout>;

}  // namespace

std::vector<double> MeshSearch::EdgeTable(const SearchGraph::Edge& edge) const {
  const GraphLayer& layer = (*problem_.graph)[edge.consumer];
  const Extents whole = ExtentsOf(samples_, layer.input_shapes[At(edge.input)]);
  const Halo halo = HaloOf(layer);
  Distinct<CompactLayout> made;
  for (const LayerOption& option : options(edge.producer)) {
    made.Add(edge.of_model_input ? GivenInput(option) : option.output);
  }
  Distinct<Taken> taken;
  for (const LayerOption& option : options(edge.consumer)) {
    CompactLayout gradient = option.input;
    gradient.partial = option.gradient_partial;
    taken.Add({option.input, gradient});
  }
  std::vector<double> seconds;
  for (const CompactLayout& from : made.values) {
    CompactLayout complete = from;
    complete.partial = 0;
    for (const auto& [input, gradient] : taken.values) {
      double both = moves_.Forward(whole, from, input, halo).seconds;
      if (edge.backward) both += moves_.Backward(whole, gradient, complete, halo).seconds;
      seconds.push_back(both * problem_.micro_batches);
    }
  }
  std::vector<double> table;
  table.reserve(made.of.size() * taken.of.size());
  for (const size_t producer : made.of) {
    for (const size_t consumer : taken.of) {
      table.push_back(seconds[producer * taken.values.size() + consumer]);
    }
  }
  return table;
}

void MeshSearch::BuildEdges() {
  has_tables_ = true;
  tables_.resize(At(graph_.edge_kinds()));
  for (const SearchGraph::Edge& edge : graph_.edges()) {
    std::vector<double>& table = tables_[At(edge.kind)];
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
    for (size_t o = 0; o < costs.open.size(); ++o) {
      unary.push_back(costs.open[o] + weight * costs.hidden[o]);
    }
  }
  return sum_;
}

// --- The answer ---

std::vector<IndexSplit> MeshSearch::SplitsOf(int layer, int option) const {
  return cadre::SplitsOf(graph_.classes()[At(graph_.class_of(layer))], moves_.mesh(),
                         options(layer)[At(option)]);
}

Plan MeshSearch::PlanOf(std::span<const int> choice) const {
  Plan plan{.mesh = mesh_};
  for (int l = 0; l < graph_.size(); ++l) {
    auto layouts = LayOut((*problem_.graph)[l], mesh_, SplitsOf(l, choice[At(l)]));
    CHECK(layouts.ok()) << layouts.status();
    plan.layers.push_back(*std::move(layouts));
  }
  return plan;
}

}  // namespace cadre
