// Parameters are stored in the order of the layers. Both the layer and the offset increase along
// the list, so lookups by either are binary searches.
#include "model/parameter_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/graph.h"

namespace cadre {

absl::StatusOr<ParameterIndex> ParameterIndex::FromModel(const v1::Model& model) {
  if (model.has_opaque()) return FromOpaque(model.opaque());
  CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(model));
  return FromGraph(graph);
}

ParameterIndex ParameterIndex::FromGraph(const Graph& graph) {
  ParameterIndex index;
  for (int l = 0; l < graph.size(); ++l) {
    int number = 0;
    for (const LayerParameter& parameter : graph[l].parameters) {
      index.parameters_.push_back({.name = absl::StrCat(graph[l].name, "/", parameter.name),
                                   .shape = parameter.shape,
                                   .offset = index.size(),
                                   .role = parameter.role,
                                   .layer = l,
                                   .number = number++,
                                   .initial_stddev = parameter.initial_stddev,
                                   .initial_value = parameter.initial_value});
    }
  }
  return index;
}

ParameterIndex ParameterIndex::FromOpaque(const v1::OpaqueModel& model) {
  ParameterIndex index;
  for (const v1::OpaqueParameter& parameter : model.parameter()) {
    if (!parameter.frozen_digest().empty()) continue;
    const bool trained = !parameter.has_trained() || parameter.trained();
    const std::vector<int64_t> extents(parameter.shape().begin(), parameter.shape().end());
    index.parameters_.push_back(
        {.name = parameter.name(),
         .shape = Shape(extents),
         .offset = index.size(),
         .role = trained ? ParameterRole::kWeight : ParameterRole::kRunningMean,
         .layer = static_cast<int>(std::ssize(index.parameters_))});
  }
  return index;
}

std::vector<int> ParameterIndex::OfLayer(int layer) const {
  const auto first = std::partition_point(parameters_.begin(), parameters_.end(),
                                          [layer](const Parameter& p) { return p.layer < layer; });
  std::vector<int> positions;
  for (auto it = first; it != parameters_.end() && it->layer == layer; ++it) {
    positions.push_back(it - parameters_.begin());
  }
  return positions;
}

absl::StatusOr<int> ParameterIndex::Find(absl::string_view name) const {
  for (int i = 0; i < std::ssize(parameters_); ++i) {
    if (parameters_[i].name == name) return i;
  }
  return absl::NotFoundError(absl::StrCat("the model has no parameter '", name, "'"));
}

// Parameters without elements yield no range.
std::vector<v1::Range> ParameterIndex::RangesOf(int64_t begin, int64_t end) const {
  std::vector<v1::Range> ranges;
  const auto first = std::partition_point(parameters_.begin(), parameters_.end(),
                                          [begin](const Parameter& p) { return p.end() <= begin; });
  for (auto it = first; it != parameters_.end() && it->offset < end; ++it) {
    v1::Range range;
    range.set_tensor(it - parameters_.begin());
    range.set_begin(std::max(begin, it->offset) - it->offset);
    range.set_end(std::min(end, it->end()) - it->offset);
    if (range.begin() < range.end()) ranges.push_back(range);
  }
  return ranges;
}

}  // namespace cadre
