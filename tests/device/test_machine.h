// The machine whose device is tested: an emulated machine, or the one that runs the test.
//
// Each test program links its own list of machines. Thread-compatible.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace cadre {

// A kind of machine on which the tests run, such as "this machine's GPU".
struct TestMachineKind {
  std::string name;
  // Why the tests cannot use such a machine; empty if they can.
  std::string missing;
  // Makes a machine and returns the functions of CUDA on it, of whose devices the tests use the
  // first.
  std::function<std::shared_ptr<const CudaApi>()> make;
};

inline std::ostream& operator<<(std::ostream& out, const TestMachineKind& kind) {
  return out << kind.name;
}

// The kinds of machines of this test program.
std::vector<TestMachineKind> TestMachines();

// Fixture with a device of each of those machines. The staging ring is small, so that a few
// kilobytes fill it.
class OnDevice : public ::testing::TestWithParam<TestMachineKind> {
 protected:
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
    api_ = GetParam().make();
    auto device = CudaDevice::Make(*api_, {.staging_bytes = 16 << 10});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  CudaDevice& device() { return *device_; }

  // Bytes that depend on the seed.
  static std::vector<uint8_t> Bytes(size_t size, uint32_t seed) {
    std::vector<uint8_t> bytes(size);
    uint32_t state = seed * 2654435761U + 1;
    for (uint8_t& byte : bytes) {
      state = state * 1664525U + 1013904223U;
      byte = state >> 24;
    }
    return bytes;
  }
  std::vector<uint8_t> Out(const DeviceArray<uint8_t>& array) {
    std::vector<uint8_t> bytes(array.size());
    EXPECT_TRUE(device().CopyOut(array.data(), bytes.data(), bytes.size()).ok());
    return bytes;
  }
  DeviceArray<uint8_t> In(const std::vector<uint8_t>& bytes) {
    DeviceArray<uint8_t> array(device(), bytes.size(), "test");
    device().CopyIn(bytes.data(), array.data(), bytes.size());
    return array;
  }

 private:
  std::shared_ptr<const CudaApi> api_;
  std::unique_ptr<CudaDevice> device_;
};

inline std::string NameOfMachine(const ::testing::TestParamInfo<TestMachineKind>& info) {
  return info.param.name;
}

}  // namespace cadre
