// What the emulated machine promises: order between streams, copies, memory, errors.
#include "tests/emulator/emulated_cuda.h"

#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/emulator/cuda_on_host.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

__global__ void AddOne(float* x, int size) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(size);
       i += gridDim.x * blockDim.x) {
    x[i] += 1;
  }
}

class EmulatedCudaTest : public testing::TestWithParam<Mode> {
 protected:
  explicit EmulatedCudaTest(Mode mode) : machine_(mode), api_(machine_.api()) {
    EXPECT_EQ(api_.set_device(0), cudaSuccess);
  }
  EmulatedCudaTest() : EmulatedCudaTest(GetParam()) {}

  cudaStream_t Stream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(api_.stream_create(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
    return stream;
  }
  cudaEvent_t Event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(api_.event_create(&event, flags), cudaSuccess);
    return event;
  }
  float* Floats(size_t count) {
    void* memory = nullptr;
    EXPECT_EQ(api_.malloc(&memory, count * sizeof(float)), cudaSuccess);
    return static_cast<float*>(memory);
  }
  float* Pinned(size_t count) {
    void* memory = nullptr;
    EXPECT_EQ(api_.host_alloc(&memory, count * sizeof(float), 0), cudaSuccess);
    return static_cast<float*>(memory);
  }
  cudaError_t Launch(cudaStream_t stream, float* x, int size) {
    return api_.launch(reinterpret_cast<const void*>(&AddOne), dim3(2), dim3(64), nullptr, 0,
                       stream, [=] { AddOne(x, size); });
  }
  float ReadFirst(cudaStream_t stream, const float* x) {
    float value = 0;
    EXPECT_EQ(api_.copy_async(&value, x, sizeof(value), cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    return value;
  }

  EmulatedCuda machine_;
  const CudaApi& api_;
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedCudaTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

TEST_P(EmulatedCudaTest, TellsWhatItIs) {
  int count = 0, driver = 0;
  ASSERT_EQ(api_.device_count(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  ASSERT_EQ(api_.driver_version(&driver), cudaSuccess);
  EXPECT_EQ(driver, 13000);
  cudaDeviceProp properties;
  ASSERT_EQ(api_.properties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "emulated");
  EXPECT_EQ(properties.multiProcessorCount, 2);
  EXPECT_EQ(properties.major * 10 + properties.minor, 90);
  EXPECT_EQ(api_.set_device(1), cudaErrorInvalidDevice);
  EXPECT_EQ(api_.last_error(), cudaErrorInvalidDevice);
  EXPECT_EQ(api_.last_error(), cudaSuccess);
}

TEST_P(EmulatedCudaTest, WorkOfAStreamHappensInOrder) {
  cudaStream_t stream = Stream();
  float* x = Floats(1000);
  ASSERT_EQ(api_.set_async(x, 0, 4000, stream), cudaSuccess);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Launch(stream, x, 1000), cudaSuccess);
  std::vector<float> values(1000);
  ASSERT_EQ(api_.copy_async(values.data(), x, 4000, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(values, std::vector<float>(1000, 5));
}

TEST_P(EmulatedCudaTest, FreshMemoryHoldsNoNumbers) {
  EXPECT_TRUE(std::isnan(ReadFirst(Stream(), Floats(10))));
}

TEST_P(EmulatedCudaTest, MemoryHasABound) {
  EmulatedCuda small(GetParam());
  small.set_memory(1 << 20);
  const CudaApi& api = small.api();
  size_t free = 0, total = 0;
  ASSERT_EQ(api.memory_info(&free, &total), cudaSuccess);
  EXPECT_EQ(total, size_t{1} << 20);
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(api.malloc(&first, 700 << 10), cudaSuccess);
  EXPECT_EQ(api.malloc(&second, 700 << 10), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(small.live().allocations, 1);
  // Not one of those that stay.
  EXPECT_EQ(api.last_error(), cudaErrorMemoryAllocation);
  ASSERT_EQ(api.free(first), cudaSuccess);
  EXPECT_EQ(api.malloc(&second, 700 << 10), cudaSuccess);
  EXPECT_EQ(api.free(first == second ? nullptr : first),
            first == second ? cudaSuccess : cudaErrorInvalidValue);
  EXPECT_EQ(api.free(second), cudaSuccess);
  EXPECT_EQ(small.live().objects(), 0);
}

TEST_P(EmulatedCudaTest, CopiesAreHeldAgainstWhatWasAllocated) {
  cudaStream_t stream = Stream();
  float* x = Floats(4);
  std::vector<float> host(8);
  EXPECT_EQ(api_.copy_async(x, host.data(), 20, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(api_.copy_async(host.data(), x, 16, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(api_.copy_async(x, x + 1, 12, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(api_.set_async(x + 2, 0, 12, stream), cudaErrorInvalidValue);
  EXPECT_EQ(api_.copy_async(x, x + 2, 8, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  EXPECT_EQ(api_.set_async(x, 0, 16, nullptr), cudaErrorInvalidResourceHandle);
}

TEST_P(EmulatedCudaTest, LaunchesHaveShapesAsOnADevice) {
  cudaStream_t stream = Stream();
  const auto launch = [&](dim3 grid, dim3 block, size_t shared) {
    return api_.launch(nullptr, grid, block, nullptr, shared, stream, [] {});
  };
  EXPECT_EQ(launch(dim3(1), dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(0), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 70000), dim3(32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(32), 49 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(launch(dim3(1), dim3(32), 48 << 10), cudaSuccess);
  EXPECT_EQ(api_.launch(nullptr, dim3(1), dim3(1), nullptr, 0, stream, nullptr),
            cudaErrorInvalidDeviceFunction);
}

TEST_P(EmulatedCudaTest, ErrorsThatStay) {
  cudaStream_t stream = Stream();
  float* x = Floats(4);
  machine_.FailNext("launch", cudaErrorIllegalAddress, 1);
  ASSERT_EQ(Launch(stream, x, 4), cudaSuccess);
  ASSERT_EQ(Launch(stream, x, 4), cudaSuccess) << "it shows later";
  EXPECT_EQ(api_.stream_synchronize(stream), cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(api_.malloc(&memory, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(Launch(stream, x, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.last_error(), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.last_error(), cudaErrorIllegalAddress);
  // What is given back is gone all the same.
  EXPECT_EQ(api_.free(x), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.stream_destroy(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(machine_.live().objects(), 0);
}

TEST_P(EmulatedCudaTest, ErrorsThatPass) {
  machine_.FailNext("event_create", cudaErrorUnknown, 5);
  machine_.FailNext("stream_create", cudaErrorMemoryAllocation);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(api_.stream_create(&stream, 0, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(api_.stream_create(&stream, 0, 0), cudaSuccess);
  machine_.Break(cudaErrorECCUncorrectable);
  EXPECT_EQ(api_.stream_synchronize(stream), cudaErrorECCUncorrectable);
  EXPECT_STREQ(api_.error_name(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable");
}

TEST_P(EmulatedCudaTest, NoDriverAndAnOldOne) {
  EmulatedCuda other(GetParam());
  int count = 5;
  other.set_versions(0, 13000);
  EXPECT_EQ(other.api().device_count(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  other.set_versions(12080, 13000);
  EXPECT_EQ(other.api().set_device(0), cudaErrorInsufficientDriver);
  other.set_versions(13010, 13000);
  other.set_devices(0);
  EXPECT_EQ(other.api().device_count(&count), cudaErrorNoDevice);
}

TEST_P(EmulatedCudaTest, CountsCallsAndWaitsThatNobodyAskedFor) {
  cudaStream_t stream = Stream();
  float* x = Floats(4);
  float* pinned = Pinned(4);
  machine_.ResetCalls();
  ASSERT_EQ(api_.copy_async(x, pinned, 16, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(api_.copy_async(pinned, x, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(api_.stream_synchronize(stream), cudaSuccess);
  EXPECT_EQ(machine_.calls("copy_async"), 2);
  EXPECT_EQ(machine_.calls("stream_synchronize"), 1);
  EXPECT_EQ(machine_.calls("hidden_wait"), 0);
  ReadFirst(stream, x);
  EXPECT_EQ(machine_.calls("hidden_wait"), 1);
  ASSERT_EQ(api_.free(x), cudaSuccess);
  EXPECT_EQ(machine_.calls("hidden_wait"), 2);
}

TEST_P(EmulatedCudaTest, KnowsWhatLives) {
  cudaStream_t stream = Stream();
  cudaEvent_t event = Event();
  float* pinned = Pinned(10);
  EXPECT_EQ(machine_.live().objects(), 3);
  EXPECT_EQ(api_.event_destroy(event), cudaSuccess);
  EXPECT_EQ(api_.event_destroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(api_.stream_destroy(stream), cudaSuccess);
  EXPECT_EQ(api_.free_host(pinned), cudaSuccess);
  EXPECT_EQ(api_.free_host(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(machine_.live().objects(), 0);
}

TEST_P(EmulatedCudaTest, MachinesAreIndependent) {
  EmulatedCuda other(GetParam(), 2);
  ASSERT_EQ(other.api().set_device(1), cudaSuccess);
  machine_.Break(cudaErrorUnknown);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(other.api().stream_create(&stream, 0, 0), cudaSuccess);
  // It belongs to device 1.
  ASSERT_EQ(other.api().set_device(0), cudaSuccess);
  EXPECT_EQ(other.api().launch(nullptr, dim3(1), dim3(1), nullptr, 0, stream, [] {}),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(api_.set_device(0), cudaErrorUnknown);
}

// --- asynchrony ---------------------------------------------------------------------------------

class EmulatedThreadsTest : public EmulatedCudaTest {
 protected:
  EmulatedThreadsTest() : EmulatedCudaTest(Mode::kThreads) {}

  // The stream stands still until `go`.
  void Hold(cudaStream_t stream, absl::Notification* go) {
    ASSERT_EQ(EmulatedCuda::Enqueue(stream,
                                    [go] {
                                      go->WaitForNotification();
                                      return cudaSuccess;
                                    }),
              cudaSuccess);
  }
};

TEST_F(EmulatedThreadsTest, UnpinnedMemoryIsReadAtOnceAndPinnedMemoryLater) {
  absl::Notification go;
  cudaStream_t stream = Stream();
  float* x = Floats(2);
  float* pinned = Pinned(1);
  float unpinned = 1;
  *pinned = 1;
  Hold(stream, &go);
  ASSERT_EQ(api_.copy_async(x, &unpinned, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(api_.copy_async(x + 1, pinned, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  unpinned = 2;
  *pinned = 2;
  go.Notify();
  EXPECT_EQ(ReadFirst(stream, x), 1);
  EXPECT_EQ(ReadFirst(stream, x + 1), 2);
}

TEST_F(EmulatedThreadsTest, EventsOrderStreams) {
  absl::Notification go;
  cudaStream_t first = Stream(), second = Stream();
  cudaEvent_t event = Event();
  EXPECT_EQ(api_.event_query(event), cudaSuccess) << "never recorded";
  float* x = Floats(100);
  ASSERT_EQ(api_.set_async(x, 0, 400, second), cudaSuccess);
  ASSERT_EQ(api_.stream_synchronize(second), cudaSuccess);
  Hold(first, &go);
  ASSERT_EQ(Launch(first, x, 100), cudaSuccess);
  ASSERT_EQ(api_.event_record(event, first), cudaSuccess);
  ASSERT_EQ(api_.stream_wait_event(second, event, 0), cudaSuccess);
  ASSERT_EQ(Launch(second, x, 100), cudaSuccess);
  EXPECT_EQ(api_.event_query(event), cudaErrorNotReady);
  EXPECT_EQ(api_.last_error(), cudaErrorNotReady);
  go.Notify();
  EXPECT_EQ(api_.event_synchronize(event), cudaSuccess);
  EXPECT_EQ(api_.event_query(event), cudaSuccess);
  EXPECT_EQ(ReadFirst(second, x), 2);
}

// A wait is for what was recorded before it, whatever is recorded later.
TEST_F(EmulatedThreadsTest, AWaitIsForTheLastRecordBeforeIt) {
  absl::Notification go;
  cudaStream_t first = Stream(), second = Stream(), third = Stream();
  cudaEvent_t event = Event();
  ASSERT_EQ(api_.event_record(event, first), cudaSuccess);
  ASSERT_EQ(api_.stream_wait_event(third, event, 0), cudaSuccess);
  Hold(second, &go);
  ASSERT_EQ(api_.event_record(event, second), cudaSuccess);
  EXPECT_EQ(api_.stream_synchronize(third), cudaSuccess);
  EXPECT_EQ(api_.event_query(event), cudaErrorNotReady);
  go.Notify();
  EXPECT_EQ(api_.event_synchronize(event), cudaSuccess);
}

TEST_F(EmulatedThreadsTest, EventsTellTimeWhereAsked) {
  cudaStream_t stream = Stream();
  cudaEvent_t begin = Event(0), end = Event(0), timeless = Event();
  ASSERT_EQ(api_.event_record(begin, stream), cudaSuccess);
  ASSERT_EQ(api_.event_record(timeless, stream), cudaSuccess);
  ASSERT_EQ(api_.event_record(end, stream), cudaSuccess);
  ASSERT_EQ(api_.event_synchronize(end), cudaSuccess);
  float milliseconds = -1;
  ASSERT_EQ(api_.event_elapsed(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(api_.event_elapsed(&milliseconds, begin, timeless), cudaErrorInvalidResourceHandle);
}

TEST_F(EmulatedThreadsTest, StreamsRunBesideEachOther) {
  absl::Notification first_ran, second_ran;
  cudaStream_t first = Stream(), second = Stream();
  Hold(first, &second_ran);
  ASSERT_EQ(EmulatedCuda::Enqueue(first,
                                  [&] {
                                    first_ran.Notify();
                                    return cudaSuccess;
                                  }),
            cudaSuccess);
  ASSERT_EQ(EmulatedCuda::Enqueue(second,
                                  [&] {
                                    second_ran.Notify();
                                    return cudaSuccess;
                                  }),
            cudaSuccess);
  EXPECT_EQ(api_.stream_synchronize(first), cudaSuccess);
  EXPECT_TRUE(first_ran.HasBeenNotified());
}

// --- protection ---------------------------------------------------------------------------------

class EmulatedInlineDeathTest : public EmulatedCudaTest {
 protected:
  EmulatedInlineDeathTest() : EmulatedCudaTest(Mode::kInline) {}
};

TEST_F(EmulatedInlineDeathTest, TheHostCannotTouchDeviceMemory) {
  cudaStream_t stream = Stream();
  float* x = Floats(16);
  ASSERT_EQ(api_.set_async(x, 0, 64, stream), cudaSuccess);
  ASSERT_EQ(Launch(stream, x, 16), cudaSuccess);
  EXPECT_DEATH(x[3] += 1, "");
  EXPECT_EQ(ReadFirst(stream, x), 1);
}

}  // namespace
}  // namespace cadre
