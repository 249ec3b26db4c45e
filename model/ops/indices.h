// What the indices of operations (model/op_indices.h) are made of. Internal to model/ops.
//
// Thread-safe (pure functions).
#pragma once

#include <initializer_list>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/ops/operation.h"

namespace cadre {

inline constexpr char kSamples[] = "samples";
// Dimensions of a batch of images.
inline constexpr int kHeight = 1;
inline constexpr int kWidth = 2;
inline constexpr int kChannels = 3;

struct ParameterPlace {
  absl::string_view name;
  IndexPlace place;
};

// Every input has the index at the same place; parameters that are not named are summed.
OpIndex Index(const GraphLayer& layer, absl::string_view name, IndexPlace input, IndexPlace output,
              std::initializer_list<ParameterPlace> parameters = {});

// The same dimension of input and output.
OpIndex Along(const GraphLayer& layer, absl::string_view name, int dimension);

// Samples, and the first `dimensions` dimensions of a sample.
std::vector<OpIndex> Leading(const GraphLayer& layer, int dimensions);

// The last dimension of the input.
inline int LastDimension(const GraphLayer& layer) { return layer.input().rank(); }

std::vector<OpIndex> SamplesOnly(const GraphLayer& layer);
std::vector<OpIndex> AllDimensions(const GraphLayer& layer);
// The indices of all dimensions except the last one, along which the operation mixes elements.
std::vector<OpIndex> AllButLast(const GraphLayer& layer);

// y = W x: adds the two sides of a matrix, which is parameter "weight" with the sides as its first
// two dimensions; `last` is the dimension of x and y that it maps.
void AddMatrixSides(const GraphLayer& layer, int last, std::vector<OpIndex>& indices);

}  // namespace cadre
