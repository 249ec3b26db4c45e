// The fixed order of a model's parameters: every element of every parameter tensor has a flat
// position, the same for everybody who knows the model. Ranks, shards and digests speak in it.
//
// Order: layers as the model lists them, a layer's parameters as spec/graph.h lists them (weight
// before bias), elements row-major.
//
// A value; thread-safe once made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/plan.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "tensor/shape.h"

namespace cadre {

struct Parameter {
  // "<layer>/weight", "<layer>/bias", ...
  std::string name;
  Shape shape;
  // Flat position of its first element.
  int64_t offset = 0;
  ParameterRole role = ParameterRole::kWeight;
  // Position of its layer in the graph, and its own among the layer's parameters.
  int layer = 0;
  int number = 0;
  // As in spec/graph.h.
  double initial_stddev = 0;
  float initial_value = 0;

  int64_t end() const { return offset + shape.elements(); }
};

// Flat positions [begin, end).
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

class ParameterIndex {
 public:
  // Errors: InvalidArgument, as Graph::FromModel.
  static absl::StatusOr<ParameterIndex> FromModel(const v1::Model& model);
  static ParameterIndex FromGraph(const Graph& graph);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter& operator[](int i) const { return parameters_[static_cast<size_t>(i)]; }
  // Elements of all parameters.
  int64_t size() const { return parameters_.empty() ? 0 : parameters_.back().end(); }

  // Positions of a layer's parameters, in the layer's order.
  std::vector<int> OfLayer(int layer) const;

  // Errors: NotFound.
  absl::StatusOr<int> Find(absl::string_view name) const;

  // The ranges that make up flat positions [begin, end): one per tensor touched, none empty.
  // Requires: 0 <= begin <= end <= size().
  std::vector<v1::Range> RangesOf(int64_t begin, int64_t end) const;

  // Errors: InvalidArgument for a tensor or an element that is not there, or an empty range.
  absl::StatusOr<FlatRange> FlatOf(const v1::Range& range) const;

 private:
  std::vector<Parameter> parameters_;
};

}  // namespace cadre
