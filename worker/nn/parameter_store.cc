#include "worker/nn/parameter_store.h"

#include <utility>

#include "spec/initial_value.h"

namespace cadre {

ParameterStore::ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets,
                               uint64_t seed) {
  for (BucketOwnership& ownership : buckets) {
    Buffers made;
    made.weights = Tensor(Shape{ownership.size});
    made.gradients = Tensor(Shape{ownership.size});
    for (const LocalParameter& local : ownership.parameters) {
      FillInitialValues(index, seed, local.flat.begin,
                        made.weights.span().subspan(static_cast<size_t>(local.offset),
                                                    static_cast<size_t>(local.flat.size())));
    }
    made.ownership = std::move(ownership);
    buckets_.push_back(std::move(made));
  }
}

LayerParameters ParameterStore::OfLayer(const ParameterIndex& index, int layer) {
  LayerParameters found;
  for (Buffers& buffers : buckets_) {
    for (const LocalParameter& local : buffers.ownership.parameters) {
      const Parameter& parameter = index[local.parameter];
      if (parameter.layer != layer) continue;
      const auto offset = static_cast<size_t>(local.offset);
      const auto size = static_cast<size_t>(local.flat.size());
      const std::span<float> weights = buffers.weights.span().subspan(offset, size);
      const std::span<float> gradients = buffers.gradients.span().subspan(offset, size);
      (parameter.is_bias ? found.bias : found.weight) = weights;
      (parameter.is_bias ? found.bias_gradient : found.weight_gradient) = gradients;
    }
  }
  return found;
}

}  // namespace cadre
