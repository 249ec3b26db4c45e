// Captures of the emulated machine fail in the same cases as CUDA's. tests/device tests what
// captured graphs do.
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

class EmulatedCaptureTest : public testing::TestWithParam<Mode> {
 protected:
  EmulatedCaptureTest() : machine_(GetParam()), api_(machine_.api()) {
    EXPECT_EQ(api_.set_device(0), cudaSuccess);
    for (cudaStream_t* stream : {&main_, &side_}) {
      EXPECT_EQ(api_.stream_create(stream, cudaStreamNonBlocking, 0), cudaSuccess);
    }
    for (cudaEvent_t* event : {&fork_, &join_}) {
      EXPECT_EQ(api_.event_create(event, cudaEventDisableTiming), cudaSuccess);
    }
    void* memory = nullptr;
    EXPECT_EQ(api_.malloc(&memory, sizeof(int)), cudaSuccess);
    number_ = static_cast<int*>(memory);
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

  EmulatedCuda machine_;
  const CudaApi& api_;
  cudaStream_t main_ = nullptr, side_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  int* number_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedCaptureTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

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

}  // namespace
}  // namespace cadre
