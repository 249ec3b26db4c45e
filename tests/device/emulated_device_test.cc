// Links the tests of devices with emulated machines, and tests faults that such a machine injects.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/device/test_machine.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Mode = EmulatedCuda::Mode;

std::shared_ptr<const CudaApi> MakeMachine(Mode mode) {
  const auto machine = std::make_shared<EmulatedCuda>(mode);
  return {machine, &machine->api()};
}

}  // namespace

std::vector<TestMachineKind> TestMachines() {
  return {{.name = "Inline", .make = [] { return MakeMachine(Mode::kInline); }},
          {.name = "Threads", .make = [] { return MakeMachine(Mode::kThreads); }}};
}

namespace {

class EmulatedDeviceTest : public ::testing::TestWithParam<Mode> {
 protected:
  EmulatedDeviceTest() : cuda_(GetParam()) {}
  ~EmulatedDeviceTest() override {
    device_.reset();
    if (!may_leak_) {
      EXPECT_EQ(cuda_.live().objects(), 0);
    }
  }

  CudaDevice& Open(CudaDeviceOptions options = {}) {
    auto device = CudaDevice::Make(cuda_.api(), options);
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    return *device_;
  }

  EmulatedCuda cuda_;
  std::unique_ptr<CudaDevice> device_;
  bool may_leak_ = false;
};

// ---- unsuitable machines

TEST_P(EmulatedDeviceTest, NoDevice) {
  cuda_.set_devices(0);
  EXPECT_EQ(CudaDevice::Make(cuda_.api(), {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(EmulatedDeviceTest, OrdinalOutOfRange) {
  for (const int ordinal : {-1, 1, 7}) {
    const absl::Status status = CudaDevice::Make(cuda_.api(), {.ordinal = ordinal}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("this machine has 1"));
  }
}

TEST_P(EmulatedDeviceTest, BusyDevice) {
  cuda_.FailNext("memory_info", cudaErrorDevicesUnavailable);
  EXPECT_EQ(CudaDevice::Make(cuda_.api(), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(EmulatedDeviceTest, FailedOpeningDoesNotLeak) {
  for (const char* function : {"stream_create", "event_create", "host_alloc"}) {
    for (const int64_t after : {0, 1, 3}) {
      cuda_.ResetCalls();
      cuda_.FailNext(function, cudaErrorMemoryAllocation, after);
      const auto device = CudaDevice::Make(cuda_.api(), {});
      // The staging memory is one allocation.
      if (device.ok()) {
        EXPECT_LE(cuda_.calls(function), after) << function;
        // The fault did not happen yet; these calls make it happen.
        for (int64_t i = cuda_.calls(function); i <= after; ++i) (*device)->AllocateHost(1);
        continue;
      }
      EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted) << function;
      EXPECT_EQ(cuda_.live().objects(), 0) << function << " after " << after;
    }
  }
  may_leak_ = true;
}

// ---- memory

TEST_P(EmulatedDeviceTest, LimitLeavesAReserve) {
  cuda_.set_memory(size_t{16} << 30);
  CudaDevice& device = Open();
  EXPECT_EQ(device.Allocate((size_t{13} << 30) + 1, "weights"), nullptr);
  EXPECT_THAT(device.status().message(), HasSubstr("the device has 16.0 GiB, limit 13.0 GiB"));
}

TEST_P(EmulatedDeviceTest, ReserveIsAFifthOnSmallDevices) {
  cuda_.set_memory(size_t{10} << 30);
  EXPECT_EQ(Open().memory_limit(), int64_t{8} << 30);
}

TEST_P(EmulatedDeviceTest, CachedMemoryIsReleasedBeforeAllocationFails) {
  CudaDevice& device = Open({.memory_limit = 100 << 20});
  void* small = device.Allocate(40 << 20, "activations");
  device.Free(small);
  EXPECT_EQ(cuda_.calls("free"), 0);
  void* large = device.Allocate(80 << 20, "activations");
  ASSERT_NE(large, nullptr) << device.status();
  EXPECT_EQ(cuda_.calls("free"), 1);
  EXPECT_EQ(device.host_syncs_for(HostSync::kMemory), 1);
  device.Free(large);
}

TEST_P(EmulatedDeviceTest, DriverRunsOutOfMemory) {
  CudaDevice& device = Open();
  cuda_.ResetCalls();
  cuda_.FailNext("malloc", cudaErrorMemoryAllocation, 2);
  device.set_allocation_label("layer 'fc6'");
  std::vector<void*> had;
  for (int i = 0; i < 2; ++i) had.push_back(device.Allocate(64 << 20, "weights"));
  EXPECT_TRUE(device.status().ok());
  EXPECT_EQ(device.Allocate(64 << 20, "gradients"), nullptr);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(device.status().message(), AllOf(HasSubstr("64.0 MiB for gradients (layer 'fc6')"),
                                               HasSubstr("in use 128.0 MiB: weights 128.0 MiB")));
  EXPECT_FALSE(device.lost());
  for (void* memory : had) device.Free(memory);
  // A new device can use all of the memory.
  device_.reset();
  EXPECT_NE(Open().Allocate(64 << 20, "weights"), nullptr);
  may_leak_ = true;
}

TEST_P(EmulatedDeviceTest, PinnedMemoryIsLimited) {
  CudaDevice& device = Open({.host_memory_limit = 1000});
  void* const first = device.AllocateHost(600);
  ASSERT_NE(first, nullptr);
  device.FreeHost(first);
  void* const second = device.AllocateHost(1000);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(device.AllocateHost(1), nullptr);
  EXPECT_THAT(device.status().message(), HasSubstr("in use 1000 bytes, limit 1000 bytes"));
  device.FreeHost(second);
}

TEST_P(EmulatedDeviceTest, DestructionReleasesEverything) {
  CudaDevice& device = Open();
  {
    DeviceArray<float> a(device, 1000, "weights");
    DeviceArray<float> b(device, 1 << 20, "weights");
    PinnedArray<float> pinned(device, 1000);
    const auto event = device.MakeEvent();
    const auto graph = device.CaptureGraph([&] {
      device.Zero(a.data(), 4000);
      OnStream stream(device, Stream::kMoves);
      device.Zero(b.data(), 4000);
      device.Record(*event);
      return absl::OkStatus();
    });
    ASSERT_TRUE(graph.ok());
    device.LaunchGraph(**graph);
    const auto refused = device.CaptureGraph([&] { return device.Synchronize(); });
    EXPECT_EQ(*refused, nullptr);
  }
  EXPECT_EQ(device.bytes_in_use(), 0);
  device_.reset();
  EXPECT_EQ(cuda_.live().objects(), 0);
  EXPECT_EQ(cuda_.live().bytes, 0);
}

// ---- no implicit synchronisation

TEST_P(EmulatedDeviceTest, WarmStepsNeitherBlockNorAllocate) {
  CudaDevice& device = Open();
  constexpr size_t kBytes = 64 << 10;
  {
    PinnedArray<uint8_t> in(device, kBytes);
    PinnedArray<uint8_t> loss(device, 8);
    DeviceArray<uint8_t> input(device, kBytes, "activations");
    DeviceArray<uint8_t> gradients(device, kBytes, "gradients");
    DeviceArray<uint8_t> weights(device, kBytes, "weights");
    const auto ready = device.MakeEvent();
    const auto reduced = device.MakeEvent();
    const auto loss_copied = device.MakeEvent();
    // A step reads its input, computes, reduces on another stream, and updates.
    const auto step = [&] {
      device.CopyToDeviceAsync(in.data(), input.data(), kBytes);
      device.Copy(input.data(), gradients.data(), kBytes);
      device.Record(*ready);
      {
        OnStream stream(device, Stream::kCommunication);
        device.WaitFor(*ready);
        device.Copy(gradients.data(), weights.data(), kBytes);
        device.Record(*reduced);
      }
      device.WaitFor(*reduced);
      device.CopyToHostAsync(weights.data(), loss.data(), 8);
      device.Record(*loss_copied);
      return absl::OkStatus();
    };
    ASSERT_TRUE(step().ok());
    const auto graph = device.CaptureGraph(step);
    ASSERT_TRUE(graph.ok());
    ASSERT_NE(*graph, nullptr);
    const std::vector<uint8_t> labels(100, 1);
    const auto warm = [&] {
      device.CopyIn(labels.data(), input.data(), labels.size());
      ASSERT_TRUE(step().ok());
      device.LaunchGraph(**graph);
    };
    warm();
    ASSERT_TRUE(device.Synchronize().ok());

    const int64_t waits = device.host_syncs();
    cuda_.ResetCalls();
    for (int i = 0; i < 20; ++i) warm();
    EXPECT_EQ(device.host_syncs(), waits);
    for (const char* function : {"malloc", "free", "host_alloc", "free_host", "event_create",
                                 "event_destroy", "stream_create", "event_query", "begin_capture",
                                 "graph_instantiate", "memory_info", "properties", "hidden_wait"}) {
      EXPECT_EQ(cuda_.calls(function), 0) << function;
    }
    EXPECT_EQ(cuda_.calls("graph_launch"), 20);
    // Await blocks once.
    ASSERT_TRUE(device.Await(*loss_copied).ok());
    EXPECT_EQ(device.host_syncs(), waits + 1);
    EXPECT_EQ(cuda_.calls("hidden_wait"), 0);
  }
}

// ---- faults

TEST_P(EmulatedDeviceTest, LostDeviceIsReportedByTheNextAwait) {
  CudaDevice& device = Open();
  {
    DeviceArray<float> array(device, 1000, "weights");
    PinnedArray<float> pinned(device, 1000);
    const auto event = device.MakeEvent();
    device.Record(*event);
    cuda_.Break(cudaErrorECCUncorrectable);
    EXPECT_EQ(device.Await(*event).code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(device.status().message(), AllOf(HasSubstr("the GPU is lost"), HasSubstr("Xid")));
    EXPECT_TRUE(device.lost());
    device.Zero(array.data(), 4000);
    EXPECT_EQ(device.Synchronize().code(), absl::StatusCode::kUnavailable);
  }
  device_.reset();
  EXPECT_EQ(CudaDevice::Make(cuda_.api(), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(EmulatedDeviceTest, KernelFaultIsAnInternalError) {
  CudaDevice& device = Open();
  DeviceArray<float> array(device, 1000, "weights");
  cuda_.FailNext("set_async", cudaErrorIllegalAddress);
  device.Zero(array.data(), 4000);
  EXPECT_EQ(device.Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(device.status().message(), HasSubstr("a bug"));
  EXPECT_TRUE(device.lost());
}

TEST_P(EmulatedDeviceTest, LossIsDetectedAfterALibraryError) {
  CudaDevice& device = Open();
  cuda_.Break(cudaErrorLaunchFailure);
  device.Fail(absl::InternalError("CUBLAS_STATUS_EXECUTION_FAILED"));
  EXPECT_TRUE(device.lost());
}

// The library's runtime has received the error, and this one has not.
TEST_P(EmulatedDeviceTest, ErrorOfTheDeviceIsTheCauseOfALibraryError) {
  CudaDevice& device = Open();
  EXPECT_EQ(device.CauseOfLibraryError(), cudaSuccess);
  cuda_.Break(cudaErrorLaunchFailure);
  EXPECT_EQ(cuda_.api().last_error(), cudaSuccess);
  EXPECT_EQ(device.CauseOfLibraryError(), cudaErrorLaunchFailure);
  EXPECT_TRUE(device.lost());
}

TEST_P(EmulatedDeviceTest, CauseOfALibraryErrorIsNotSoughtInCaptures) {
  CudaDevice& device = Open();
  const DeviceArray<float> array(device, 1000, "weights");
  const auto graph = device.CaptureGraph([&] {
    EXPECT_EQ(device.CauseOfLibraryError(), cudaSuccess);
    device.Zero(array.data(), 4000);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_NE(*graph, nullptr) << device.capture_refusal();
}

TEST_P(EmulatedDeviceTest, SynchronousDeviceNamesTheOperationThatFailed) {
  for (const bool synchronous : {false, true}) {
    EmulatedCuda cuda(GetParam());
    const auto made = CudaDevice::Make(cuda.api(), {.synchronous = synchronous});
    ASSERT_TRUE(made.ok()) << made.status();
    CudaDevice& device = **made;
    const DeviceArray<float> a(device, 1000, "weights");
    const DeviceArray<float> b(device, 1000, "weights");
    cuda.FailNext("set_async", cudaErrorIllegalAddress);
    device.Zero(a.data(), 4000);
    if (synchronous) {
      EXPECT_TRUE(device.failed());
    }
    device.Copy(a.data(), b.data(), 4000);
    EXPECT_EQ(device.Synchronize().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(absl::StrContains(device.status().message(), "zeroing memory"), synchronous)
        << device.status();
    EXPECT_TRUE(device.lost());
  }
}

TEST_P(EmulatedDeviceTest, SynchronousDeviceWaitsAndCapturesNothing) {
  CudaDevice& device = Open({.synchronous = true});
  PinnedArray<float> pinned(device, 1000);
  DeviceArray<float> array(device, 1000, "weights");
  const int64_t before = device.host_syncs_for(HostSync::kOperation);
  device.CopyToDeviceAsync(pinned.data(), array.data(), 4000);
  device.Zero(array.data(), 4000);
  device.CopyToHostAsync(array.data(), pinned.data(), 4000);
  EXPECT_EQ(device.host_syncs_for(HostSync::kOperation), before + 3);
  EXPECT_TRUE(device.can_capture());
  const auto graph = device.CaptureGraph([&] {
    device.Zero(array.data(), 4000);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  EXPECT_THAT(device.capture_refusal(), HasSubstr("CADRE_CUDA_SYNC"));
  EXPECT_EQ(device.host_syncs_for(HostSync::kOperation), before + 3) << "the work has not run";
}

TEST_P(EmulatedDeviceTest, KernelsThatCannotBeLoadedAreAnError) {
  CudaDevice& device = Open();
  EXPECT_EQ(device.LoadKernels(), absl::OkStatus());
  cuda_.FailNext("load_kernels", cudaErrorInvalidDeviceFunction);
  EXPECT_THAT(device.LoadKernels().message(), HasSubstr("loading the kernels of this program"));
}

TEST(PinnedLimitTest, MemoryThatMayGrowIsNotLimited) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(DefaultPinnedLimit(64 * kGiB, 0), 32 * kGiB);
  // The host has little memory now. A control group's limit does not change.
  EXPECT_EQ(DefaultPinnedLimit(4 * kGiB, 0), 8 * kGiB);
  EXPECT_EQ(DefaultPinnedLimit(4 * kGiB, 4 * kGiB), 2 * kGiB);
  EXPECT_EQ(DefaultPinnedLimit(4 * kGiB, 100 * kGiB), 8 * kGiB);
  EXPECT_EQ(DefaultPinnedLimit(0, 0), 0) << "unknown";
}

TEST_P(EmulatedDeviceTest, MisuseIsAnErrorThatNamesTheAttempt) {
  CudaDevice& device = Open();
  DeviceArray<float> array(device, 1000, "weights");
  device.Zero(array.data() + 1, size_t{1} << 40);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(device.status().message(),
              HasSubstr("zeroing memory: an emulated error (cudaErrorInvalidValue)"));
  EXPECT_FALSE(device.lost());
  // A later call does not report the error again.
  EXPECT_EQ(cuda_.api().last_error(), cudaSuccess);
}

TEST_P(EmulatedDeviceTest, FailedCallsAreErrorsOfTheDevice) {
  for (const char* function :
       {"copy_async", "set_async", "event_record", "stream_wait_event", "event_query"}) {
    CudaDevice& device = Open();
    {
      DeviceArray<float> array(device, 1000, "weights");
      const std::vector<float> host(1000);
      const auto event = device.MakeEvent();
      cuda_.FailNext(function, cudaErrorInvalidValue);
      device.CopyIn(host.data(), array.data(), 4000);
      device.Zero(array.data(), 4000);
      device.Record(*event);
      device.WaitFor(*event);
      EXPECT_EQ(device.Await(*event).code(), absl::StatusCode::kInternal) << function;
    }
    device_.reset();
    EXPECT_EQ(cuda_.live().objects(), 0) << function;
  }
}

TEST_P(EmulatedDeviceTest, RejectedCapturesGiveNoGraph) {
  CudaDevice& device = Open();
  DeviceArray<uint8_t> array(device, 1000, "weights");
  const auto work = [&] {
    device.Zero(array.data(), 1000);
    return absl::OkStatus();
  };
  cuda_.FailNext("end_capture", cudaErrorStreamCaptureInvalidated);
  auto graph = device.CaptureGraph(work);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  cuda_.FailNext("graph_instantiate", cudaErrorMemoryAllocation);
  graph = device.CaptureGraph(work);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  cuda_.FailNext("set_async", cudaErrorStreamCaptureUnsupported);
  graph = device.CaptureGraph(work);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  EXPECT_EQ(cuda_.live().graphs, 0);
  EXPECT_EQ(cuda_.live().graph_execs, 0);
  // A library makes a call that captures forbid.
  graph = device.CaptureGraph([&] {
    void* memory = nullptr;
    EXPECT_NE(cuda_.api().malloc(&memory, 100), cudaSuccess);
    return work();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  graph = device.CaptureGraph(work);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_NE(*graph, nullptr);
  cuda_.FailNext("graph_instantiate", cudaErrorECCUncorrectable);
  EXPECT_EQ(device.CaptureGraph(work).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cuda_.live().graphs, 0);
}

TEST_P(EmulatedDeviceTest, SeveralDevicesInOneThread) {
  cuda_.set_devices(2);
  auto made = CudaDevice::Make(cuda_.api(), {.ordinal = 1});
  ASSERT_TRUE(made.ok()) << made.status();
  CudaDevice& second = **made;
  EXPECT_EQ(second.ordinal(), 1);
  CudaDevice& first = Open();
  for (int i = 0; i < 3; ++i) {
    for (CudaDevice* device : {&first, &second}) {
      DeviceArray<int> array(*device, 100, "weights");
      const auto event = device->MakeEvent();
      device->CopyIn(&i, array.data() + 5, sizeof(i));
      device->Record(*event);
      int out = -1;
      ASSERT_TRUE(device->Await(*event).ok());
      ASSERT_TRUE(device->CopyOut(array.data() + 5, &out, sizeof(out)).ok());
      EXPECT_EQ(out, i);
    }
  }
}

TEST_P(EmulatedDeviceTest, AnotherThreadMayUseTheDevice) {
  cuda_.set_devices(2);
  auto made = CudaDevice::Make(cuda_.api(), {.ordinal = 1});
  ASSERT_TRUE(made.ok()) << made.status();
  CudaDevice& device = **made;
  std::thread([&device] {
    DeviceArray<int> array(device, 100, "weights");
    const auto event = device.MakeEvent();
    device.Record(*event);
    EXPECT_TRUE(device.Await(*event).ok());
  }).join();
  EXPECT_TRUE(device.Synchronize().ok());
}

INSTANTIATE_TEST_SUITE_P(Modes, EmulatedDeviceTest,
                         ::testing::Values(Mode::kInline, Mode::kThreads),
                         [](const ::testing::TestParamInfo<Mode>& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

// ---- work that does not end

class BusyDeviceTest : public ::testing::Test {
 protected:
  BusyDeviceTest() : cuda_(Mode::kThreads) {}
  ~BusyDeviceTest() override { End(); }

  CudaDevice& Open(absl::Duration patience) {
    auto device = CudaDevice::Make(cuda_.api(), {.staging_bytes = 16 << 10, .patience = patience});
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    return *device_;
  }
  // Blocks the stream, like a collective whose peer is lost.
  void Hang(cudaStream_t stream) {
    ASSERT_EQ(EmulatedCuda::Enqueue(stream,
                                    [this] {
                                      end_.WaitForNotification();
                                      return cudaSuccess;
                                    }),
              cudaSuccess);
  }
  void End() {
    if (!end_.HasBeenNotified()) end_.Notify();
  }

  EmulatedCuda cuda_;
  absl::Notification end_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(BusyDeviceTest, FailEndsAwait) {
  CudaDevice& device = Open(absl::Hours(1));
  Hang(device.stream(Stream::kCommunication));
  auto event = device.MakeEvent();
  {
    OnStream stream(device, Stream::kCommunication);
    device.Record(*event);
  }
  // A transport whose peer was lost calls Fail from its own thread.
  std::thread watcher([&device, this] {
    while (cuda_.calls("event_query") == 0) absl::SleepFor(absl::Milliseconds(1));
    device.Fail(absl::UnavailableError("rank 3 is lost"));
  });
  EXPECT_EQ(device.Await(*event), absl::UnavailableError("rank 3 is lost"));
  watcher.join();
  EXPECT_FALSE(device.lost());
  // The transport also ends the hanging work.
  End();
  event.reset();
  device_.reset();
  EXPECT_EQ(cuda_.live().streams, 0);
}

TEST_F(BusyDeviceTest, AwaitEndsAfterPatience) {
  CudaDevice& device = Open(absl::Milliseconds(20));
  Hang(device.stream());
  EXPECT_EQ(device.Synchronize().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(device.status().message(), HasSubstr("has not ended"));
  End();
}

TEST_F(BusyDeviceTest, EndlessWorkKeepsItsMemory) {
  CudaDevice& device = Open(absl::Milliseconds(20));
  {
    DeviceArray<float> array(device, 1000, "weights");
    PinnedArray<float> pinned(device, 1000);
    Hang(device.stream());
    device.CopyToHostAsync(array.data(), pinned.data(), 4000);
    EXPECT_FALSE(device.Synchronize().ok());
  }
  device_.reset();
  // These calls of the driver would have blocked permanently.
  EXPECT_EQ(cuda_.calls("free"), 0);
  EXPECT_EQ(cuda_.calls("free_host"), 0);
  EXPECT_GT(cuda_.live().allocations, 0);
}

TEST_F(BusyDeviceTest, FullStagingRingIsAHostSync) {
  CudaDevice& device = Open(absl::Hours(1));
  DeviceArray<uint8_t> array(device, 64 << 10, "weights");
  ASSERT_TRUE(device.Synchronize().ok());
  Hang(device.stream());
  const std::vector<uint8_t> host(64 << 10, 7);
  // The ring holds these bytes without blocking.
  device.CopyIn(host.data(), array.data(), 16 << 10);
  EXPECT_EQ(device.host_syncs_for(HostSync::kStaging), 0);
  cuda_.ResetCalls();
  std::thread ender([this] {
    while (cuda_.calls("event_query") < 2) absl::SleepFor(absl::Milliseconds(1));
    End();
  });
  device.CopyIn(host.data() + (16 << 10), array.data() + (16 << 10), 48 << 10);
  EXPECT_GE(device.host_syncs_for(HostSync::kStaging), 1);
  ender.join();
  std::vector<uint8_t> out(host.size());
  ASSERT_TRUE(device.CopyOut(array.data(), out.data(), out.size()).ok());
  EXPECT_EQ(out, host);
}

TEST_F(BusyDeviceTest, StatusMayBeReadByOtherThreads) {
  CudaDevice& device = Open(absl::Hours(1));
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) {
      EXPECT_FALSE(device.name().empty());
      if (!device.status().ok()) {
        EXPECT_TRUE(device.failed());
      }
    }
  });
  const auto event = device.MakeEvent();
  for (int i = 0; i < 100; ++i) {
    device.Record(*event);
    EXPECT_TRUE(device.Await(*event).ok());
  }
  device.Fail(absl::InternalError("over"));
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace cadre
