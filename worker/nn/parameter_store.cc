#include "worker/nn/parameter_store.h"

#include <utility>

#include "spec/initial_value.h"

namespace cadre {

ParameterStore::ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets,
                               uint64_t seed, bool accumulates) {
  for (BucketOwnership& ownership : buckets) {
    Buffers made;
    made.weights = Tensor(Shape{ownership.size});
    made.gradients = Tensor(Shape{ownership.size});
    if (accumulates) made.sums = Tensor(Shape{ownership.size});
    for (const LocalParameter& local : ownership.parameters) {
      for (const OwnedPiece& run : RunsOf(index, local)) {
        FillInitialValues(index, seed, run.flat.begin,
                          made.weights.span().subspan(static_cast<size_t>(run.offset),
                                                      static_cast<size_t>(run.flat.size())));
      }
    }
    made.ownership = std::move(ownership);
    buckets_.push_back(std::move(made));
  }
}

std::vector<LocalTensor> ParameterStore::OfLayer(const ParameterIndex& index, int layer) {
  std::vector<LocalTensor> found(index.OfLayer(layer).size());
  for (Buffers& buffers : buckets_) {
    for (const LocalParameter& local : buffers.ownership.parameters) {
      const Parameter& parameter = index[local.parameter];
      if (parameter.layer != layer) continue;
      const auto offset = static_cast<size_t>(local.offset);
      const auto size = static_cast<size_t>(local.size());
      found[static_cast<size_t>(parameter.number)] = {
          buffers.weights.span().subspan(offset, size),
          buffers.gradients.span().subspan(offset, size)};
    }
  }
  return found;
}

int64_t ParameterStore::weight_bytes() const {
  int64_t bytes = 0;
  for (const Buffers& buffers : buckets_) bytes += buffers.weights.elements() * 4;
  return bytes;
}

int64_t ParameterStore::gradient_bytes() const {
  int64_t bytes = 0;
  for (const Buffers& buffers : buckets_) {
    bytes += 4 * (buffers.gradients.elements() + buffers.sums.elements());
  }
  return bytes;
}

}  // namespace cadre
