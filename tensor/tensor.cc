#include "tensor/tensor.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cadre {
namespace {

// One cache line, and one AVX-512 register.
constexpr size_t kAlignment = 64;

}  // namespace

Tensor::Tensor(Shape shape) : shape_(std::move(shape)) {
  CHECK(std::all_of(shape_.dims().begin(), shape_.dims().end(), [](int64_t d) { return d >= 0; }))
      << shape_.ToString();
  const size_t bytes = shape_.elements() * sizeof(float);
  if (bytes == 0) return;
  // aligned_alloc takes whole multiples of the alignment.
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  data_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, rounded)));
  CHECK(data_ != nullptr) << "no memory for a tensor of " << shape_.ToString();
  std::memset(data_.get(), 0, rounded);
}

void Tensor::Fill(float value) { std::fill_n(data(), size(), value); }

}  // namespace cadre
