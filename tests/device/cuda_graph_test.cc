// Tests graphs against device.h and cuda_device.h, on the machines that the program links
// (test_machine.h).
#include <cstring>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "tests/device/test_machine.h"

namespace cadre {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

class CudaGraphTest : public OnDevice {
 protected:
  std::unique_ptr<DeviceGraph> CaptureOrFail(const std::function<void()>& work) {
    auto graph = device().CaptureGraph([&work] {
      work();
      return absl::OkStatus();
    });
    EXPECT_TRUE(graph.ok()) << graph.status();
    EXPECT_NE(*graph, nullptr);
    return *std::move(graph);
  }
};

TEST_P(CudaGraphTest, LaunchReadsTheCurrentInputs) {
  ASSERT_TRUE(device().can_capture());
  PinnedArray<uint8_t> in(device(), kBytes);
  PinnedArray<uint8_t> out(device(), kBytes);
  DeviceArray<uint8_t> a(device(), kBytes, "test");
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  DeviceArray<uint8_t> c(device(), kBytes, "test");
  const auto here = device().MakeEvent();
  const auto there = device().MakeEvent();
  const auto work = [&] {
    device().CopyToDeviceAsync(in.data(), a.data(), kBytes);
    device().Record(*here);
    {
      OnStream stream(device(), Stream::kMoves);
      device().WaitFor(*here);
      device().Copy(a.data(), b.data(), kBytes);
      device().Record(*there);
    }
    device().Zero(c.data(), kBytes / 2);
    device().WaitFor(*there);
    device().Copy(b.data() + kBytes / 2, c.data() + kBytes / 2, kBytes / 2);
    device().CopyToHostAsync(c.data(), out.data(), kBytes);
  };
  const auto graph = CaptureOrFail(work);
  // Capturing does not run the work.
  EXPECT_EQ(Out(b), std::vector<uint8_t>(kBytes));
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::vector<uint8_t> expected = Bytes(kBytes, seed);
    std::memcpy(in.data(), expected.data(), kBytes);
    std::memset(out.data(), 0xEE, kBytes);
    device().LaunchGraph(*graph);
    ASSERT_TRUE(device().Synchronize().ok());
    std::fill(expected.begin(), expected.begin() + kBytes / 2, uint8_t{0});
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), kBytes), 0) << seed;
  }
}

TEST_P(CudaGraphTest, StreamsAreForkedAndJoinedAutomatically) {
  const std::vector<uint8_t> bytes = Bytes(kBytes, 1);
  DeviceArray<uint8_t> a(device(), kBytes, "test");
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  DeviceArray<uint8_t> c(device(), kBytes, "test");
  const auto graph = CaptureOrFail([&] {
    device().Zero(c.data(), 4);
    OnStream stream(device(), Stream::kCommunication);
    device().Copy(a.data(), b.data(), kBytes);
  });
  {
    // The launch runs after this work, although the launch is enqueued on another stream,
    OnStream stream(device(), Stream::kCommunication);
    device().CopyIn(bytes.data(), a.data(), kBytes);
  }
  device().LaunchGraph(*graph);
  {
    // and before this work.
    OnStream stream(device(), Stream::kCommunication);
    device().Zero(a.data(), kBytes);
    device().Copy(b.data(), c.data(), kBytes);
    EXPECT_EQ(Out(c), bytes);
  }
}

TEST_P(CudaGraphTest, CapturedEventsCanBeAwaitedOutside) {
  const std::vector<uint8_t> bytes = Bytes(kBytes, 1);
  const DeviceArray<uint8_t> a = In(bytes);
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  DeviceArray<uint8_t> c(device(), kBytes, "test");
  const auto copied = device().MakeEvent();
  const auto graph = CaptureOrFail([&] {
    device().Copy(a.data(), b.data(), kBytes);
    device().Record(*copied);
  });
  // The event was recorded in the capture, but nothing was launched yet.
  EXPECT_TRUE(device().Await(*copied).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 0);
  device().LaunchGraph(*graph);
  {
    OnStream stream(device(), Stream::kCopies);
    device().WaitFor(*copied);
    device().Copy(b.data(), c.data(), kBytes);
    EXPECT_EQ(Out(c), bytes);
  }
  EXPECT_TRUE(device().Await(*copied).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 1);
}

TEST_P(CudaGraphTest, EventsFromOutsideAreAwaitedByEveryLaunch) {
  DeviceArray<uint8_t> a(device(), kBytes, "test");
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  const auto filled = device().MakeEvent();
  const auto graph = CaptureOrFail([&] {
    device().WaitFor(*filled);
    device().Copy(a.data(), b.data(), kBytes);
  });
  for (uint32_t seed = 0; seed < 5; ++seed) {
    const std::vector<uint8_t> bytes = Bytes(kBytes, seed);
    {
      OnStream stream(device(), Stream::kCopies);
      device().CopyIn(bytes.data(), a.data(), kBytes);
      device().Record(*filled);
    }
    device().LaunchGraph(*graph);
    ASSERT_EQ(Out(b), bytes);
  }
}

TEST_P(CudaGraphTest, EventsMayBeDestroyedBeforeTheGraph) {
  const DeviceArray<uint8_t> a = In(Bytes(kBytes, 1));
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  auto before = device().MakeEvent();
  auto inside = device().MakeEvent();
  device().Record(*before);
  const auto graph = CaptureOrFail([&] {
    device().WaitFor(*before);
    device().Copy(a.data(), b.data(), kBytes);
    device().Record(*inside);
  });
  before.reset();
  inside.reset();
  device().LaunchGraph(*graph);
  EXPECT_EQ(Out(b), Bytes(kBytes, 1));
}

TEST_P(CudaGraphTest, ForbiddenCallsFailTheCaptureOnly) {
  DeviceArray<uint8_t> a(device(), 1000, "test");
  DeviceArray<uint8_t> b(device(), 1000, "test");
  std::vector<uint8_t> host = Bytes(1000, 9);
  PinnedArray<uint8_t> pinned(device(), 1000);
  const auto event = device().MakeEvent();
  device().Record(*event);
  const auto good = CaptureOrFail([&] { device().Zero(b.data(), 10); });
  const struct {
    const char* name;
    std::function<void()> what;
  } attempts[] = {
      {"Allocate", [&] { EXPECT_EQ(device().Allocate(10, "test"), nullptr); }},
      {"AllocateHost", [&] { EXPECT_EQ(device().AllocateHost(10), nullptr); }},
      {"CopyIn", [&] { device().CopyIn(host.data(), a.data(), 1000); }},
      {"CopyOut",
       [&] {
         EXPECT_EQ(device().CopyOut(a.data(), host.data(), 1000).code(),
                   absl::StatusCode::kFailedPrecondition);
       }},
      {"Await",
       [&] { EXPECT_EQ(device().Await(*event).code(), absl::StatusCode::kFailedPrecondition); }},
      {"Synchronize",
       [&] { EXPECT_EQ(device().Synchronize().code(), absl::StatusCode::kFailedPrecondition); }},
      {"LaunchGraph", [&] { device().LaunchGraph(*good); }},
  };
  for (const auto& attempt : attempts) {
    const int64_t waits = device().host_syncs();
    device().CopyIn(Bytes(1000, 1).data(), b.data(), 1000);
    const auto graph = device().CaptureGraph([&] {
      EXPECT_TRUE(device().capturing());
      device().Zero(b.data(), 1000);
      device().Record(*event);
      attempt.what();
      OnStream stream(device(), Stream::kMoves);
      device().Zero(b.data(), 1000);
      return absl::OkStatus();
    });
    ASSERT_TRUE(graph.ok()) << attempt.name << ": " << graph.status();
    EXPECT_EQ(*graph, nullptr) << attempt.name;
    EXPECT_NE(device().capture_refusal(), "") << attempt.name;
    EXPECT_FALSE(device().capturing());
    EXPECT_TRUE(device().status().ok()) << attempt.name;
    EXPECT_EQ(device().host_syncs() - device().host_syncs_for(HostSync::kStaging), waits)
        << attempt.name;
    // The work did not run, and the device is usable.
    EXPECT_EQ(Out(b), Bytes(1000, 1)) << attempt.name;
    EXPECT_TRUE(device().Await(*event).ok()) << attempt.name;
  }
  EXPECT_EQ(host, Bytes(1000, 9));
  device().LaunchGraph(*good);
  EXPECT_EQ(Out(b)[9], 0);
}

TEST_P(CudaGraphTest, FreeingMemoryFailsTheCapture) {
  auto a = std::make_unique<DeviceArray<uint8_t>>(device(), 1000, "test");
  const auto graph = device().CaptureGraph([&] {
    device().Zero(a->data(), 1000);
    a.reset();
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  EXPECT_EQ(device().bytes_in_use(), 0);
}

TEST_P(CudaGraphTest, FailedWorkGivesNoGraph) {
  const DeviceArray<uint8_t> a = In(Bytes(1000, 1));
  const auto graph = device().CaptureGraph([&] {
    device().Use(Stream::kMoves);
    device().Zero(a.data(), 1000);
    return absl::InvalidArgumentError("no such layer");
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  EXPECT_EQ(device().current_stream(), Stream::kCompute);
  EXPECT_EQ(Out(a), Bytes(1000, 1));
}

TEST_P(CudaGraphTest, FailedOperationFailsTheCaptureOnly) {
  const auto graph = device().CaptureGraph([&] {
    device().FailOperation(absl::InternalError("cuDNN: not while capturing"));
    device().FailOperation(absl::InternalError("a consequence"));
    return device().status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(*graph, nullptr);
  EXPECT_EQ(device().capture_refusal(), "cuDNN: not while capturing");
  const DeviceArray<uint8_t> a(device(), 1000, "test");
  const auto next = CaptureOrFail([&] { device().Zero(a.data(), 1000); });
  EXPECT_EQ(device().capture_refusal(), "");
  // Outside of a capture it is the device's error.
  device().FailOperation(absl::InternalError("cuDNN: not supported"));
  EXPECT_EQ(device().status(), absl::InternalError("cuDNN: not supported"));
}

TEST_P(CudaGraphTest, DeviceErrorFailsTheCapture) {
  const auto graph = device().CaptureGraph([&] {
    device().Fail(absl::UnavailableError("a peer is lost"));
    return absl::OkStatus();
  });
  EXPECT_EQ(graph.status(), absl::UnavailableError("a peer is lost"));
}

TEST_P(CudaGraphTest, GraphsInterleave) {
  constexpr int kSteps = 4;
  DeviceArray<uint8_t> state(device(), (kSteps + 1) * 1000, "test");
  std::vector<std::unique_ptr<DeviceGraph>> shifts;
  for (size_t i = 0; i < kSteps; ++i) {
    shifts.push_back(CaptureOrFail(
        [&] { device().Copy(state.data() + i * 1000, state.data() + (i + 1) * 1000, 1000); }));
  }
  for (uint32_t seed = 0; seed < 20; ++seed) {
    device().CopyIn(Bytes(1000, seed).data(), state.data(), 1000);
    for (const auto& shift : shifts) device().LaunchGraph(*shift);
    std::vector<uint8_t> last(1000);
    ASSERT_TRUE(device().CopyOut(state.data() + kSteps * 1000, last.data(), 1000).ok());
    ASSERT_EQ(last, Bytes(1000, seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, CudaGraphTest, ::testing::ValuesIn(TestMachines()),
                         NameOfMachine);

}  // namespace
}  // namespace cadre
