#include "model/parameter_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/graph.h"

namespace cadre {

absl::StatusOr<ParameterIndex> ParameterIndex::FromModel(const v1::Model& model) {
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

std::vector<int> ParameterIndex::OfLayer(int layer) const {
  const auto first = std::partition_point(parameters_.begin(), parameters_.end(),
                                          [layer](const Parameter& p) { return p.layer < layer; });
  std::vector<int> positions;
  for (auto it = first; it != parameters_.end() && it->layer == layer; ++it) {
    positions.push_back(static_cast<int>(it - parameters_.begin()));
  }
  return positions;
}

absl::StatusOr<int> ParameterIndex::Find(absl::string_view name) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) return static_cast<int>(i);
  }
  return absl::NotFoundError(absl::StrCat("the model has no parameter '", name, "'"));
}

std::vector<v1::Range> ParameterIndex::RangesOf(int64_t begin, int64_t end) const {
  std::vector<v1::Range> ranges;
  const auto first = std::partition_point(parameters_.begin(), parameters_.end(),
                                          [begin](const Parameter& p) { return p.end() <= begin; });
  for (auto it = first; it != parameters_.end() && it->offset < end; ++it) {
    v1::Range range;
    range.set_tensor(static_cast<uint32_t>(it - parameters_.begin()));
    range.set_begin(std::max(begin, it->offset) - it->offset);
    range.set_end(std::min(end, it->end()) - it->offset);
    if (range.begin() < range.end()) ranges.push_back(range);
  }
  return ranges;
}

absl::StatusOr<Interval> ParameterIndex::FlatOf(const v1::Range& range) const {
  if (range.tensor() >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("range of tensor ", range.tensor(), ": the model has ", parameters_.size()));
  }
  const Parameter& parameter = parameters_[range.tensor()];
  const auto elements = static_cast<uint64_t>(parameter.shape.elements());
  if (range.begin() >= range.end() || range.end() > elements) {
    return absl::InvalidArgumentError(absl::StrCat("range [", range.begin(), ", ", range.end(),
                                                   ") of ", parameter.name, ": it has ", elements,
                                                   " elements"));
  }
  return Interval{parameter.offset + static_cast<int64_t>(range.begin()),
                  parameter.offset + static_cast<int64_t>(range.end())};
}

}  // namespace cadre
