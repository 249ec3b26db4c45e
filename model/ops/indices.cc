#include "model/ops/indices.h"

#include <algorithm>
#include <string>

namespace cadre {
namespace {

// The names of the dimensions of one sample.
std::vector<std::string> DimensionNames(const Shape& sample) {
  if (sample.rank() == 3) return {"height", "width", "channels"};
  if (sample.rank() == 2) return {"tokens", "features"};
  return {"features"};
}

}  // namespace

OpIndex Index(const GraphLayer& layer, absl::string_view name, IndexPlace input, IndexPlace output,
              std::initializer_list<ParameterPlace> parameters) {
  OpIndex index{.name = std::string(name), .output = output};
  index.inputs.assign(layer.input_shapes.size(), input);
  for (const LayerParameter& parameter : layer.parameters) {
    const auto* named = std::find_if(parameters.begin(), parameters.end(),
                                     [&](const auto& p) { return p.name == parameter.name; });
    index.parameters.push_back(named == parameters.end() ? IndexPlace::Summed() : named->place);
  }
  return index;
}

OpIndex Along(const GraphLayer& layer, absl::string_view name, int dimension) {
  return Index(layer, name, IndexPlace::Dimension(dimension), IndexPlace::Dimension(dimension));
}

std::vector<OpIndex> Leading(const GraphLayer& layer, int dimensions) {
  std::vector<OpIndex> indices = {Along(layer, kSamples, 0)};
  const std::vector<std::string> names = DimensionNames(layer.input());
  for (int d = 0; d < dimensions; ++d) {
    indices.push_back(Along(layer, names[d], d + 1));
  }
  return indices;
}

std::vector<OpIndex> SamplesOnly(const GraphLayer& layer) { return Leading(layer, 0); }

std::vector<OpIndex> AllDimensions(const GraphLayer& layer) {
  return Leading(layer, layer.input().rank());
}

std::vector<OpIndex> AllButLast(const GraphLayer& layer) {
  return Leading(layer, layer.input().rank() - 1);
}

void AddMatrixSides(const GraphLayer& layer, int last, std::vector<OpIndex>& indices) {
  indices.push_back(
      Index(layer, "out", IndexPlace::Summed(), IndexPlace::Dimension(last),
            {{"weight", IndexPlace::Dimension(0)}, {"bias", IndexPlace::Dimension(0)}}));
  indices.push_back(Index(layer, "in", IndexPlace::Dimension(last), IndexPlace::Summed(),
                          {{"weight", IndexPlace::Dimension(1)}, {"bias", IndexPlace::Same()}}));
}

}  // namespace cadre
