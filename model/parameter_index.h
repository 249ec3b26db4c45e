// The fixed order of a model's parameters (the parameter order): every element of every parameter
// tensor has a number in it, its flat position, which ranks, shards and digests use.
//
// Order: layers as in the graph, parameters as in the layer (weight before bias), elements
// row-major.
//
// A value; immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/graph.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// One parameter tensor of the model.
struct Parameter {
  // "<layer>/weight", "<layer>/bias", ...
  std::string name;
  Shape shape;
  // Flat position of its first element.
  int64_t offset = 0;
  ParameterRole role = ParameterRole::kWeight;
  // Index of its layer in the graph, and its index within the layer.
  int layer = 0;
  int number = 0;
  // As in model/graph.h.
  double initial_stddev = 0;
  float initial_value = 0;

  int64_t end() const { return offset + shape.elements(); }
};

class ParameterIndex {
 public:
  // Errors: InvalidArgument, as Graph::FromModel.
  static absl::StatusOr<ParameterIndex> FromModel(const v1::Model& model);
  static ParameterIndex FromGraph(const Graph& graph);
  // Every parameter that is not frozen, as a layer of its own; those that are not trained are
  // statistics.
  static ParameterIndex FromOpaque(const v1::OpaqueModel& model);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter& operator[](int i) const { return parameters_[i]; }
  // Elements of all parameters.
  int64_t size() const { return parameters_.empty() ? 0 : parameters_.back().end(); }

  // Positions of a layer's parameters, in the layer's order.
  std::vector<int> OfLayer(int layer) const;

  // Errors: NotFound.
  absl::StatusOr<int> Find(absl::string_view name) const;

  // The non-empty ranges of flat positions [begin, end), one per tensor.
  // Requires: 0 <= begin <= end <= size().
  std::vector<v1::Range> RangesOf(int64_t begin, int64_t end) const;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace cadre
