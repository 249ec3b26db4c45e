#include "worker/data/sampler.h"

#include <glog/logging.h>

#include "base/random.h"

namespace cadre {

SampleRef Sampler::SampleAt(int64_t position) {
  CHECK_GE(position, 0);
  const int64_t epoch = position / size_;
  const auto place = static_cast<size_t>(position % size_);
  return {.index = Permutation(epoch)[place], .epoch = epoch};
}

const std::vector<uint32_t>& Sampler::Permutation(int64_t epoch) {
  Cached& slot = cached_[epoch % 2];
  if (slot.epoch != epoch) {
    slot.order = RandomPermutation(seed_, RandomStream::kSampleOrder, epoch, size_);
    slot.epoch = epoch;
  }
  return slot.order;
}

}  // namespace cadre
