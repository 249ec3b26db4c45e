#include "server/block_changes.h"

#include <algorithm>
#include <iterator>

#include "base/vector_loop.h"
#include "base/weighted_sums.h"
#include "model/change_sums.h"
#include "server/mean.h"

namespace cadre {
namespace {

// The first kSampledChunk of each kSampleStride positions are sampled: whole cache lines, spread
// over the shard.
constexpr size_t kSampledChunk = 64;
constexpr size_t kSampleStride = 16 * kSampledChunk;

CADRE_VECTOR_LOOP
void Subtract(const float* __restrict x, const float* __restrict y, float* __restrict difference,
              size_t n) {
  for (size_t i = 0; i < n; ++i) difference[i] = x[i] - y[i];
}

CADRE_VECTOR_LOOP
double Product(const float* a, const float* b, size_t n) {
  double lanes[8] = {};
  const size_t whole = n / std::size(lanes) * std::size(lanes);
  for (size_t i = 0; i < whole; i += std::size(lanes)) {
    for (size_t lane = 0; lane < std::size(lanes); ++lane) {
      lanes[lane] += double{a[i + lane]} * double{b[i + lane]};
    }
  }
  double sum = 0;
  for (size_t i = whole; i < n; ++i) sum += double{a[i]} * double{b[i]};
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void BlockChanges::Begin(std::span<const float> before, std::span<const float> weights) {
  before_ = before;
  weights_ = weights;
  squared_.clear();
  sample_.clear();
  const size_t whole = before.size() / kSampleStride;
  sample_size_ =
      whole * kSampledChunk + std::min(kSampledChunk, before.size() - whole * kSampleStride);
}

void BlockChanges::Add(std::span<const float> x, double squared) {
  squared_.push_back(squared);
  size_t at = sample_.size();
  sample_.resize(at + sample_size_);
  for (size_t begin = 0; begin < x.size(); begin += kSampleStride) {
    const size_t size = std::min(kSampledChunk, x.size() - begin);
    Subtract(x.data() + begin, before_.data() + begin, sample_.data() + at, size);
    at += size;
  }
}

void BlockChanges::End(v1::ChangeSums& sums) {
  std::vector<float> mean(sample_size_);
  const auto sample_of = [this](size_t group) { return sample_.data() + group * sample_size_; };
  for (size_t group = 0; group < weights_.size(); ++group) {
    const float* const sample = sample_of(group);
    AddWeighted(weights_[group], {sample, sample_size_}, mean);
  }
  v1::ChangeSums block;
  for (size_t group = 0; group < weights_.size(); ++group) {
    const float* const sample = sample_of(group);
    block.add_squared(squared_[group]);
    block.add_sampled_squared(Product(sample, sample, sample_size_));
    block.add_product(Product(sample, mean.data(), sample_size_));
  }
  block.add_mean_squared(Product(mean.data(), mean.data(), sample_size_));
  AddChanges(block, sums);
}

}  // namespace cadre
