// Tests that copies, memory, errors and captures of the emulated machine are as strict and as
// asynchronous as CUDA's. The tests of devices (tests/device), which also run on it, test the order
// of streams and events, and what captured graphs do.
#include "tests/emulator/emulated_cuda.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
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
    return api_.launch(reinterpret_cast<const void*>(&AddOne), dim3(2), dim3(64), nullptr, stream,
                       [=] { AddOne(x, size); });
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

std::string NameOfMode(const testing::TestParamInfo<Mode>& info) {
  return info.param == Mode::kInline ? "Inline" : "Threads";
}

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedCudaTest, testing::Values(Mode::kInline, Mode::kThreads),
                         NameOfMode);

TEST_P(EmulatedCudaTest, NewMemoryIsNan) {
  EXPECT_TRUE(std::isnan(ReadFirst(Stream(), Floats(10))));
}

TEST_P(EmulatedCudaTest, MemoryIsLimited) {
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
  // This error is not sticky.
  EXPECT_EQ(api.last_error(), cudaErrorMemoryAllocation);
  ASSERT_EQ(api.free(first), cudaSuccess);
  EXPECT_EQ(api.malloc(&second, 700 << 10), cudaSuccess);
  EXPECT_EQ(api.free(first == second ? nullptr : first),
            first == second ? cudaSuccess : cudaErrorInvalidValue);
  EXPECT_EQ(api.free(second), cudaSuccess);
  EXPECT_EQ(small.live().objects(), 0);
}

TEST_P(EmulatedCudaTest, CopiesMustBeWithinAllocations) {
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

constexpr int kBound = 64;
// The kernels differ, so that the compiler does not merge them.
std::atomic<int> last_kernel;
__global__ void __launch_bounds__(kBound) Bounded() { last_kernel = 1; }
template <int N>
__global__ void __launch_bounds__(N / 2) BoundedByTemplate() {
  last_kernel = N;
}
__global__ void AfterBounded() { last_kernel = 3; }

TEST_P(EmulatedCudaTest, BlocksMustKeepTheLaunchBoundsOfTheKernel) {
#ifndef __x86_64__
  GTEST_SKIP() << "launch bounds are known on x86-64 only";
#endif
  cudaStream_t stream = Stream();
  const auto launch = [&](void (*kernel)(), dim3 block) {
    return api_.launch(reinterpret_cast<const void*>(kernel), dim3(1), block, nullptr, stream,
                       kernel);
  };
  EXPECT_EQ(launch(Bounded, dim3(kBound)), cudaSuccess);
  EXPECT_EQ(launch(Bounded, dim3(kBound + 1)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(Bounded, dim3(kBound / 2, 3)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(BoundedByTemplate<512>, dim3(256)), cudaSuccess);
  EXPECT_EQ(launch(BoundedByTemplate<512>, dim3(257)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(AfterBounded, dim3(1024)), cudaSuccess);
}

TEST_P(EmulatedCudaTest, LaunchesMustHaveValidExtents) {
  cudaStream_t stream = Stream();
  const auto launch = [&](dim3 grid, dim3 block) {
    return api_.launch(nullptr, grid, block, nullptr, stream, [] {});
  };
  EXPECT_EQ(launch(dim3(1), dim3(1025)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(0), dim3(32)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 70000), dim3(32)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1), dim3(32)), cudaSuccess);
  EXPECT_EQ(api_.launch(nullptr, dim3(1), dim3(1), nullptr, stream, nullptr),
            cudaErrorInvalidDeviceFunction);
}

TEST_P(EmulatedCudaTest, StickyErrors) {
  cudaStream_t stream = Stream();
  float* x = Floats(4);
  machine_.FailNext("launch", cudaErrorIllegalAddress, 1);
  ASSERT_EQ(Launch(stream, x, 4), cudaSuccess);
  ASSERT_EQ(Launch(stream, x, 4), cudaSuccess) << "the error is asynchronous";
  EXPECT_EQ(EmulatedCuda::Drain(stream), cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(api_.malloc(&memory, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(Launch(stream, x, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.last_error(), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.last_error(), cudaErrorIllegalAddress);
  // The calls fail, but memory and streams are freed.
  EXPECT_EQ(api_.free(x), cudaErrorIllegalAddress);
  EXPECT_EQ(api_.stream_destroy(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(machine_.live().objects(), 0);
}

TEST_P(EmulatedCudaTest, TransientErrors) {
  machine_.FailNext("event_create", cudaErrorUnknown, 5);
  machine_.FailNext("stream_create", cudaErrorMemoryAllocation);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(api_.stream_create(&stream, 0, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(api_.stream_create(&stream, 0, 0), cudaSuccess);
  machine_.Break(cudaErrorECCUncorrectable);
  EXPECT_EQ(EmulatedCuda::Drain(stream), cudaErrorECCUncorrectable);
  EXPECT_STREQ(api_.error_name(cudaErrorECCUncorrectable), "cudaErrorECCUncorrectable");
}

TEST_P(EmulatedCudaTest, CountsCallsAndImplicitWaits) {
  cudaStream_t stream = Stream();
  float* x = Floats(4);
  float* pinned = Pinned(4);
  machine_.ResetCalls();
  ASSERT_EQ(api_.copy_async(x, pinned, 16, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(api_.copy_async(pinned, x, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(EmulatedCuda::Drain(stream), cudaSuccess);
  EXPECT_EQ(machine_.calls("copy_async"), 2);
  EXPECT_EQ(machine_.calls("hidden_wait"), 0);
  ReadFirst(stream, x);
  EXPECT_EQ(machine_.calls("hidden_wait"), 1);
  ASSERT_EQ(api_.free(x), cudaSuccess);
  EXPECT_EQ(machine_.calls("hidden_wait"), 2);
}

TEST_P(EmulatedCudaTest, MachinesAreIndependent) {
  EmulatedCuda other(GetParam(), 2);
  ASSERT_EQ(other.api().set_device(1), cudaSuccess);
  machine_.Break(cudaErrorUnknown);
  cudaStream_t stream = nullptr;
  EXPECT_EQ(other.api().stream_create(&stream, 0, 0), cudaSuccess);
  // The stream belongs to device 1, so a launch fails if device 0 is current.
  ASSERT_EQ(other.api().set_device(0), cudaSuccess);
  EXPECT_EQ(other.api().launch(nullptr, dim3(1), dim3(1), nullptr, stream, [] {}),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(api_.set_device(0), cudaErrorUnknown);
}

// --- asynchrony ---------------------------------------------------------------------------------

class EmulatedThreadsTest : public EmulatedCudaTest {
 protected:
  EmulatedThreadsTest() : EmulatedCudaTest(Mode::kThreads) {}

  // Blocks the stream until `go`.
  void Hold(cudaStream_t stream, absl::Notification* go) {
    ASSERT_EQ(EmulatedCuda::Enqueue(stream,
                                    [go] {
                                      go->WaitForNotification();
                                      return cudaSuccess;
                                    }),
              cudaSuccess);
  }
};

TEST_F(EmulatedThreadsTest, UnpinnedMemoryIsReadImmediatelyAndPinnedMemoryLater) {
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

// A wait refers to the last record before it; later records do not matter.
TEST_F(EmulatedThreadsTest, WaitRefersToTheLastRecordBeforeIt) {
  absl::Notification go;
  cudaStream_t first = Stream(), second = Stream(), third = Stream();
  cudaEvent_t event = Event();
  ASSERT_EQ(api_.event_record(event, first), cudaSuccess);
  ASSERT_EQ(api_.stream_wait_event(third, event, 0), cudaSuccess);
  Hold(second, &go);
  ASSERT_EQ(api_.event_record(event, second), cudaSuccess);
  EXPECT_EQ(EmulatedCuda::Drain(third), cudaSuccess);
  EXPECT_EQ(api_.event_query(event), cudaErrorNotReady);
  go.Notify();
  EXPECT_EQ(EmulatedCuda::Drain(second), cudaSuccess);
  EXPECT_EQ(api_.event_query(event), cudaSuccess);
}

TEST_F(EmulatedThreadsTest, EventsWithTiming) {
  cudaStream_t stream = Stream();
  cudaEvent_t begin = Event(0), end = Event(0), timeless = Event();
  ASSERT_EQ(api_.event_record(begin, stream), cudaSuccess);
  ASSERT_EQ(api_.event_record(timeless, stream), cudaSuccess);
  ASSERT_EQ(api_.event_record(end, stream), cudaSuccess);
  ASSERT_EQ(EmulatedCuda::Drain(stream), cudaSuccess);
  float milliseconds = -1;
  ASSERT_EQ(api_.event_elapsed(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(api_.event_elapsed(&milliseconds, begin, timeless), cudaErrorInvalidResourceHandle);
}

// --- captures, which fail in the same cases as CUDA's --------------------------------------------

class EmulatedCaptureTest : public EmulatedCudaTest {
 protected:
  EmulatedCaptureTest() {
    EXPECT_EQ(api_.set_async(number_, 0, sizeof(int), main_), cudaSuccess);
    EXPECT_EQ(EmulatedCuda::Drain(main_), cudaSuccess);
  }

  // number = number * times + plus.
  void Change(cudaStream_t stream, int times, int plus) {
    EXPECT_EQ(EmulatedCuda::Enqueue(stream,
                                    [number = number_, times, plus] {
                                      *number = *number * times + plus;
                                      return cudaSuccess;
                                    }),
              cudaSuccess);
  }
  int Number() {
    int number = 0;
    EXPECT_EQ(api_.copy_async(&number, number_, sizeof(int), cudaMemcpyDeviceToHost, main_),
              cudaSuccess);
    return number;
  }
  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(api_.begin_capture(main_, mode), cudaSuccess);
  }
  cudaError_t End() {
    const cudaError_t error = api_.end_capture(main_, &graph_);
    EXPECT_EQ(graph_ == nullptr, error != cudaSuccess);
    return error;
  }
  void ForkSide() {
    EXPECT_EQ(api_.event_record(fork_, main_), cudaSuccess);
    EXPECT_EQ(api_.stream_wait_event(side_, fork_, 0), cudaSuccess);
  }
  void JoinSide() {
    EXPECT_EQ(api_.event_record(join_, side_), cudaSuccess);
    EXPECT_EQ(api_.stream_wait_event(main_, join_, 0), cudaSuccess);
  }

  cudaStream_t main_ = Stream(), side_ = Stream();
  cudaEvent_t fork_ = Event(), join_ = Event();
  cudaGraph_t graph_ = nullptr;
  int* const number_ = reinterpret_cast<int*>(Floats(1));
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedCaptureTest, testing::Values(Mode::kInline, Mode::kThreads),
                         NameOfMode);

TEST_P(EmulatedCaptureTest, StreamsMustBeJoined) {
  Begin();
  ForkSide();
  Change(side_, 1, 1);
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  // Both streams are usable again.
  Change(side_, 1, 1);
  EXPECT_EQ(EmulatedCuda::Drain(side_), cudaSuccess);
  EXPECT_EQ(Number(), 1);
}

TEST_P(EmulatedCaptureTest, ForbiddenCallsInvalidateTheCapture) {
  float unpinned = 0;
  void* memory = nullptr;
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return api_.malloc(&memory, 16); },
      [&] { return api_.free(number_); },
      [&] { return api_.host_alloc(&memory, 16, 0); },
      [&] { return api_.event_query(fork_); },
      [&] { return api_.copy_async(&unpinned, number_, 4, cudaMemcpyDeviceToHost, main_); },
      [&] { return api_.copy_async(number_, &unpinned, 4, cudaMemcpyHostToDevice, main_); },
  };
  for (const auto& call : calls) {
    Begin();
    Change(main_, 1, 1);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(EmulatedCuda::Enqueue(main_, [] { return cudaSuccess; }),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
    api_.last_error();
  }
  EXPECT_EQ(Number(), 0);
}

TEST_P(EmulatedCaptureTest, RelaxedCaptureMayAllocate) {
  void* memory = nullptr;
  Begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(api_.malloc(&memory, 16), cudaSuccess);
  Change(main_, 1, 1);
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_P(EmulatedCaptureTest, EventsFromOutsideCannotBeAwaited) {
  ASSERT_EQ(api_.event_record(fork_, side_), cudaSuccess);
  Begin();
  EXPECT_EQ(api_.stream_wait_event(main_, fork_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
}

TEST_P(EmulatedCaptureTest, EventsOfACaptureCannotBeUsedOutside) {
  Begin();
  ForkSide();
  JoinSide();
  ASSERT_EQ(End(), cudaSuccess);
  EXPECT_EQ(api_.event_query(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(api_.stream_wait_event(side_, fork_, 0), cudaErrorCapturedEvent);
  // Once the event is recorded again outside of the capture, it can be used.
  EXPECT_EQ(api_.event_record(fork_, main_), cudaSuccess);
  EXPECT_EQ(EmulatedCuda::Drain(main_), cudaSuccess);
  EXPECT_EQ(api_.event_query(fork_), cudaSuccess);
}

TEST_P(EmulatedCaptureTest, EndsOnItsStreamAndThread) {
  Begin();
  ForkSide();
  EXPECT_EQ(api_.end_capture(side_, &graph_), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(End(), cudaErrorIllegalState);
  Begin();
  std::thread([&] { EXPECT_EQ(End(), cudaErrorStreamCaptureWrongThread); }).join();
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_P(EmulatedCaptureTest, CapturesCannotBeMerged) {
  Begin();
  ASSERT_EQ(api_.begin_capture(side_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(api_.event_record(fork_, main_), cudaSuccess);
  EXPECT_EQ(api_.stream_wait_event(side_, fork_, 0), cudaErrorStreamCaptureMerge);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(api_.end_capture(side_, &graph_), cudaErrorStreamCaptureInvalidated);
}

// --- protection ---------------------------------------------------------------------------------

class EmulatedInlineDeathTest : public EmulatedCudaTest {
 protected:
  EmulatedInlineDeathTest() : EmulatedCudaTest(Mode::kInline) {}
};

TEST_F(EmulatedInlineDeathTest, HostCannotAccessDeviceMemory) {
  cudaStream_t stream = Stream();
  float* x = Floats(16);
  ASSERT_EQ(api_.set_async(x, 0, 64, stream), cudaSuccess);
  ASSERT_EQ(Launch(stream, x, 16), cudaSuccess);
  EXPECT_DEATH(x[3] += 1, "");
  EXPECT_EQ(ReadFirst(stream, x), 1);
}

}  // namespace
}  // namespace cadre
