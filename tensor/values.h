// A typed view of elements in the memory of one device, without ownership. Kernels take activations
// and their gradients as such views.
//
// Parameters, their gradients and statistics are always fp32 and are passed as std::span<float>.
// Activations can be bf16 and are passed as Values. Only kernels of the device may dereference the
// pointer; any code may make sub-views.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "glog/logging.h"
#include "tensor/dtype.h"

namespace cadre {

template <bool kConst>
class BasicValues {
 public:
  using Void = std::conditional_t<kConst, const void, void>;
  using Byte = std::conditional_t<kConst, const std::byte, std::byte>;
  using Float = std::conditional_t<kConst, const float, float>;

  BasicValues() = default;
  BasicValues(Void* data, size_t size, DType type) : data_(data), size_(size), type_(type) {}
  // A view of fp32 elements, from anything that converts to a span.
  template <typename Range>
  requires(std::is_convertible_v<Range&&, std::span<Float>> &&
           !std::is_base_of_v<BasicValues, std::remove_cvref_t<Range>>)
      BasicValues(Range&& range) {  // NOLINT: implicit, as std::span is
    const std::span<Float> floats = static_cast<Range&&>(range);
    data_ = floats.data();
    size_ = floats.size();
  }
  // Converts a mutable view to a const one.
  template <bool kOther>
  requires(kConst && !kOther) BasicValues(const BasicValues<kOther>& values)  // NOLINT
      : data_(values.data()), size_(values.size()), type_(values.type()) {}

  Void* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  DType type() const { return type_; }
  size_t bytes() const { return size_ * SizeOf(type_); }

  BasicValues first(size_t count) const { return subspan(0, count); }
  BasicValues subspan(size_t offset) const {
    CHECK_LE(offset, size_);
    return subspan(offset, size_ - offset);
  }
  BasicValues subspan(size_t offset, size_t count) const {
    CHECK(offset <= size_ && count <= size_ - offset)
        << offset << " + " << count << " of " << size_;
    return {static_cast<Byte*>(data_) + offset * SizeOf(type_), count, type_};
  }

  // Requires: fp32.
  std::span<Float> floats() const {
    CHECK(type_ == DType::kFloat32 || size_ == 0) << "these are " << DTypeName(type_);
    return {static_cast<Float*>(data_), size_};
  }

 private:
  Void* data_ = nullptr;
  size_t size_ = 0;
  DType type_ = DType::kFloat32;
};

using Values = BasicValues<false>;
using ConstValues = BasicValues<true>;

}  // namespace cadre
