// A permutation of an epoch takes O(size) time and 4 bytes per sample; a position then takes O(1).
#include "worker/data/sampler.h"

#include <glog/logging.h>

#include "base/random.h"

namespace cadre {

SampleRef Sampler::SampleAt(int64_t position) {
  CHECK_GE(position, 0);
  const int64_t epoch = position / size_;
  Cached& cached = cached_[epoch % 2];
  if (cached.epoch != epoch) {
    cached.order = RandomPermutation(seed_, RandomStream::kSampleOrder, epoch, size_);
    cached.epoch = epoch;
  }
  return {.index = cached.order[position % size_], .epoch = epoch};
}

}  // namespace cadre
