// Version 0 is computed by every rank for its own shards, as a pure function of seed and position,
// so that no rank has to send it.
#include "worker/nn/parameter_store.h"

#include <algorithm>
#include <utility>

#include "model/initial_value.h"
#include "worker/nn/allocation_label.h"

namespace cadre {
namespace {

// Initial values are computed on the host, in batches of this many elements.
constexpr int64_t kFilledAtATime = 1 << 20;

// Fills `weights`, which are contiguous in the parameter order from position `begin`.
void FillIn(const ParameterIndex& index, uint64_t seed, int64_t begin, Device& device,
            std::span<float> weights) {
  if (device.is_host()) return FillInitialValues(index, seed, begin, weights);
  std::vector<float> batch;
  for (int64_t done = 0; done < std::ssize(weights); done += std::ssize(batch)) {
    batch.resize(std::min(kFilledAtATime, std::ssize(weights) - done));
    FillInitialValues(index, seed, begin + done, batch);
    device.CopyIn(batch.data(), weights.data() + done, batch.size() * sizeof(float));
  }
}

}  // namespace

ParameterStore::ParameterStore(const ParameterIndex& index, std::vector<BucketOwnership> buckets,
                               uint64_t seed, Backend& kernels, bool accumulates) {
  Device& device = kernels.device();
  for (BucketOwnership& ownership : buckets) {
    const int64_t size = ownership.size;
    const AllocationLabel allocation_label(device, BucketDisplayName(index, ownership));
    Buffers made;
    made.weights = DeviceArray<float>(device, size, "weights");
    made.gradients = DeviceArray<float>(device, size, "gradients");
    if (accumulates) made.sums = DeviceArray<float>(device, size, "gradients");
    // After an allocation error the buffers are null; the caller checks the device's status.
    if (device.status().ok()) {
      for (const LocalParameter& local : ownership.parameters) {
        for (const OwnedInterval& run : ContiguousIntervals(index, local)) {
          FillIn(index, seed, run.positions.begin, device,
                 made.weights.span().subspan(run.offset, run.positions.size()));
        }
      }
      kernels.WeightsChanged(made.weights.span());
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
      found[parameter.number] = {buffers.weights.span().subspan(local.offset, local.size()),
                                 buffers.gradients.span().subspan(local.offset, local.size())};
    }
  }
  return found;
}

int64_t ParameterStore::weight_bytes() const {
  int64_t bytes = 0;
  for (const Buffers& buffers : buckets_) bytes += 4 * buffers.weights.size();
  return bytes;
}

int64_t ParameterStore::gradient_bytes() const {
  int64_t bytes = 0;
  for (const Buffers& buffers : buckets_) {
    bytes += 4 * (buffers.gradients.size() + buffers.sums.size());
  }
  return bytes;
}

}  // namespace cadre
