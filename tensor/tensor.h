// A dense row-major fp32 tensor that owns its memory, aligned for vector instructions.
//
// Thread-compatible. Movable, not copyable.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>

#include "tensor/shape.h"

namespace cadre {

class Tensor {
 public:
  Tensor() = default;
  // Contents are zero.
  explicit Tensor(Shape shape);

  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  const Shape& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  std::span<float> span() { return {data(), size()}; }
  std::span<const float> span() const { return {data(), size()}; }
  void Fill(float value);

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  size_t size() const { return data_ == nullptr ? 0 : shape_.elements(); }

  Shape shape_{0};
  std::unique_ptr<float[], Free> data_;
};

}  // namespace cadre
