// Tests the host's device against device.h; its work is complete when a call returns.
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "device/device.h"
#include "device/gpu_environment.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

TEST(HostDeviceTest, MemoryIsZeroAndCounted) {
  const auto device = MakeHostDevice();
  EXPECT_TRUE(device->is_host());
  EXPECT_EQ(device->Allocate(0, "nothing"), nullptr);
  {
    DeviceArray<float> array(*device, 1000, "weights");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 256, 0U);
    for (const float value : array.span()) EXPECT_EQ(value, 0);
    EXPECT_EQ(device->bytes_in_use(), 4000);
  }
  EXPECT_EQ(device->bytes_in_use(), 0);
  EXPECT_EQ(device->peak_bytes(), 4000);
}

TEST(HostDeviceTest, CopiesAreImmediate) {
  const auto device = MakeHostDevice();
  std::vector<int> values(100);
  std::iota(values.begin(), values.end(), 0);
  DeviceArray<int> a(*device, 100, "weights");
  DeviceArray<int> b(*device, 100, "weights");
  device->CopyIn(values.data(), a.data(), 400);
  device->Copy(a.data(), b.data(), 400);
  device->Zero(a.data(), 200);
  std::vector<int> out(100);
  ASSERT_TRUE(device->CopyOut(b.data(), out.data(), 400).ok());
  EXPECT_EQ(out, values);
  EXPECT_EQ(a.span()[49], 0);
  EXPECT_EQ(a.span()[50], 50);
  EXPECT_EQ(device->host_syncs(), 0);
}

TEST(HostDeviceTest, ArraysMove) {
  const auto device = MakeHostDevice();
  DeviceArray<int> a(*device, 10, "weights");
  int* const data = a.data();
  DeviceArray<int> b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);
  a = std::move(b);
  EXPECT_EQ(a.data(), data);
  EXPECT_EQ(device->bytes_in_use(), 40);
}

TEST(HostDeviceTest, TheFirstErrorIsKept) {
  const auto device = MakeHostDevice();
  EXPECT_TRUE(device->status().ok());
  device->Fail(absl::UnavailableError("first"));
  device->Fail(absl::InternalError("second"));
  EXPECT_EQ(device->status(), absl::UnavailableError("first"));
  EXPECT_EQ(device->Synchronize(), absl::UnavailableError("first"));
  EXPECT_FALSE(device->lost());
}

TEST(GpuEnvironmentTest, KeepsValues) {
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16", /*overwrite=*/1);
  SetGpuEnvironment();
  EXPECT_STREQ(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  SetGpuEnvironment();
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST(GpuEnvironmentTest, SynchronousIfRequested) {
  unsetenv("CADRE_CUDA_SYNC");
  EXPECT_FALSE(SynchronousGpu());
  setenv("CADRE_CUDA_SYNC", "0", /*overwrite=*/1);
  EXPECT_FALSE(SynchronousGpu());
  setenv("CADRE_CUDA_SYNC", "1", /*overwrite=*/1);
  EXPECT_TRUE(SynchronousGpu());
}

TEST(HostDeviceTest, HasStreamsButNoGraphs) {
  const auto device = MakeHostDevice();
  EXPECT_EQ(device->current_stream(), Stream::kCompute);
  {
    OnStream stream(*device, Stream::kCopies);
    EXPECT_EQ(device->current_stream(), Stream::kCopies);
  }
  EXPECT_EQ(device->current_stream(), Stream::kCompute);
  const auto event = device->MakeEvent();
  EXPECT_TRUE(device->Await(*event).ok());
  EXPECT_FALSE(device->can_capture());
  EXPECT_EQ(device->CaptureGraph([] { return absl::OkStatus(); }).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace cadre
