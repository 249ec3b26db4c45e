#include "worker/data/sampler.h"

#include <glog/logging.h>

#include "base/random.h"

namespace cadre {

int64_t Sampler::SampleAt(int64_t position) {
  CHECK_GE(position, 0);
  const auto place = static_cast<size_t>(position % size_);
  return Permutation(position / size_)[place];
}

void Sampler::SamplesFrom(int64_t first, std::span<int64_t> samples) {
  for (int64_t& sample : samples) sample = SampleAt(first++);
}

const std::vector<uint32_t>& Sampler::Permutation(int64_t epoch) {
  Cached& slot = cached_[static_cast<size_t>(epoch % 2)];
  if (slot.epoch != epoch) {
    slot.order = RandomPermutation(seed_, RandomStream::kSampleOrder, static_cast<uint64_t>(epoch),
                                   static_cast<uint64_t>(size_));
    slot.epoch = epoch;
  }
  return slot.order;
}

}  // namespace cadre
