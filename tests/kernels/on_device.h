// Floats of a test in a device's memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "tensor/values.h"
#include "tests/kernels/testing.h"

namespace cadre {

// Floats in a device's memory, as fp32 or bf16. They begin `shift` elements after an aligned
// address.
class OnDevice {
 public:
  OnDevice(Device& device, const Floats& values, DType type = DType::kFloat32, int64_t shift = 0);

  Values values() const;
  // Requires: fp32.
  std::span<float> span() const { return values().floats(); }
  Floats Get() const;

 private:
  Device& device_;
  const DType type_;
  const size_t size_;
  const size_t shift_;
  DeviceArray<std::byte> memory_;
};

template <typename T>
std::vector<T> FromDevice(Device& device, std::span<const T> values) {
  std::vector<T> copy(values.size());
  if (!values.empty()) {
    EXPECT_TRUE(device.CopyOut(values.data(), copy.data(), values.size_bytes()).ok());
  }
  return copy;
}

}  // namespace cadre
