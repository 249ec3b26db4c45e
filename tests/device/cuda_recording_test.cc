// What device.h and cuda_device.h promise of recordings, on whatever machine is linked.
#include <cstring>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "tests/device/test_machine.h"

namespace cadre {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

class CudaRecordingTest : public OnDevice {
 protected:
  std::unique_ptr<DeviceGraph> RecordOrDie(const std::function<void()>& work) {
    auto recording = device().CaptureGraph([&work] {
      work();
      return absl::OkStatus();
    });
    EXPECT_TRUE(recording.ok()) << recording.status();
    EXPECT_NE(*recording, nullptr);
    return *std::move(recording);
  }
};

TEST_P(CudaRecordingTest, ReplaysWithWhatItsInputsAreThen) {
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
  const auto recording = RecordOrDie(work);
  // Nothing was done.
  EXPECT_EQ(Out(b), std::vector<uint8_t>(kBytes));
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::vector<uint8_t> expected = Bytes(kBytes, seed);
    std::memcpy(in.data(), expected.data(), kBytes);
    std::memset(out.data(), 0xEE, kBytes);
    device().LaunchGraph(*recording);
    ASSERT_TRUE(device().Synchronize().ok());
    std::fill(expected.begin(), expected.begin() + kBytes / 2, uint8_t{0});
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), kBytes), 0) << seed;
  }
}

TEST_P(CudaRecordingTest, LanesAreLedThereAndBackUnasked) {
  const std::vector<uint8_t> bytes = Bytes(kBytes, 1);
  DeviceArray<uint8_t> a(device(), kBytes, "test");
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  DeviceArray<uint8_t> c(device(), kBytes, "test");
  const auto recording = RecordOrDie([&] {
    device().Zero(c.data(), 4);
    OnStream stream(device(), Stream::kCommunication);
    device().Copy(a.data(), b.data(), kBytes);
  });
  {
    // Behind this on its stream, although it is played from another.
    OnStream stream(device(), Stream::kCommunication);
    device().CopyIn(bytes.data(), a.data(), kBytes);
  }
  device().LaunchGraph(*recording);
  {
    // And before this.
    OnStream stream(device(), Stream::kCommunication);
    device().Zero(a.data(), kBytes);
    device().Copy(b.data(), c.data(), kBytes);
    EXPECT_EQ(Out(c), bytes);
  }
}

TEST_P(CudaRecordingTest, EventsOfInsideAreThereOutside) {
  const std::vector<uint8_t> bytes = Bytes(kBytes, 1);
  const DeviceArray<uint8_t> a = In(bytes);
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  DeviceArray<uint8_t> c(device(), kBytes, "test");
  const auto copied = device().MakeEvent();
  const auto recording = RecordOrDie([&] {
    device().Copy(a.data(), b.data(), kBytes);
    device().Record(*copied);
  });
  // Recorded inside, not yet played.
  EXPECT_TRUE(device().Await(*copied).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 0);
  device().LaunchGraph(*recording);
  {
    OnStream stream(device(), Stream::kCopies);
    device().WaitFor(*copied);
    device().Copy(b.data(), c.data(), kBytes);
    EXPECT_EQ(Out(c), bytes);
  }
  EXPECT_TRUE(device().Await(*copied).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 1);
}

TEST_P(CudaRecordingTest, EventsOfOutsideAreWaitedForAtEveryPlay) {
  DeviceArray<uint8_t> a(device(), kBytes, "test");
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  const auto filled = device().MakeEvent();
  const auto recording = RecordOrDie([&] {
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
    device().LaunchGraph(*recording);
    ASSERT_EQ(Out(b), bytes);
  }
}

TEST_P(CudaRecordingTest, EventsMayGoBeforeTheRecording) {
  const DeviceArray<uint8_t> a = In(Bytes(kBytes, 1));
  DeviceArray<uint8_t> b(device(), kBytes, "test");
  auto before = device().MakeEvent();
  auto inside = device().MakeEvent();
  device().Record(*before);
  const auto recording = RecordOrDie([&] {
    device().WaitFor(*before);
    device().Copy(a.data(), b.data(), kBytes);
    device().Record(*inside);
  });
  before.reset();
  inside.reset();
  device().LaunchGraph(*recording);
  EXPECT_EQ(Out(b), Bytes(kBytes, 1));
}

TEST_P(CudaRecordingTest, WhatItCannotKeepSpoilsItAndNothingElse) {
  DeviceArray<uint8_t> a(device(), 1000, "test");
  DeviceArray<uint8_t> b(device(), 1000, "test");
  std::vector<uint8_t> host = Bytes(1000, 9);
  PinnedArray<uint8_t> pinned(device(), 1000);
  const auto event = device().MakeEvent();
  device().Record(*event);
  const auto good = RecordOrDie([&] { device().Zero(b.data(), 10); });
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
      {"Play", [&] { device().LaunchGraph(*good); }},
  };
  for (const auto& attempt : attempts) {
    const int64_t waits = device().host_syncs();
    device().CopyIn(Bytes(1000, 1).data(), b.data(), 1000);
    const auto recording = device().CaptureGraph([&] {
      EXPECT_TRUE(device().capturing());
      device().Zero(b.data(), 1000);
      device().Record(*event);
      attempt.what();
      OnStream stream(device(), Stream::kMoves);
      device().Zero(b.data(), 1000);
      return absl::OkStatus();
    });
    ASSERT_TRUE(recording.ok()) << attempt.name << ": " << recording.status();
    EXPECT_EQ(*recording, nullptr) << attempt.name;
    EXPECT_FALSE(device().capturing());
    EXPECT_TRUE(device().status().ok()) << attempt.name;
    EXPECT_EQ(device().host_syncs() - device().host_syncs_for(HostSync::kStaging), waits)
        << attempt.name;
    // Nothing was done, and the caller does it without.
    EXPECT_EQ(Out(b), Bytes(1000, 1)) << attempt.name;
    EXPECT_TRUE(device().Await(*event).ok()) << attempt.name;
  }
  EXPECT_EQ(host, Bytes(1000, 9));
  device().LaunchGraph(*good);
  EXPECT_EQ(Out(b)[9], 0);
}

TEST_P(CudaRecordingTest, MemoryThatIsFreedInsideSpoilsIt) {
  auto a = std::make_unique<DeviceArray<uint8_t>>(device(), 1000, "test");
  const auto recording = device().CaptureGraph([&] {
    device().Zero(a->data(), 1000);
    a.reset();
    return absl::OkStatus();
  });
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(*recording, nullptr);
  EXPECT_EQ(device().bytes_in_use(), 0);
}

TEST_P(CudaRecordingTest, WorkThatFailsIsNotRecorded) {
  const DeviceArray<uint8_t> a = In(Bytes(1000, 1));
  const auto recording = device().CaptureGraph([&] {
    device().Use(Stream::kMoves);
    device().Zero(a.data(), 1000);
    return absl::InvalidArgumentError("no such layer");
  });
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(*recording, nullptr);
  EXPECT_EQ(device().current_stream(), Stream::kCompute);
  EXPECT_EQ(Out(a), Bytes(1000, 1));
}

TEST_P(CudaRecordingTest, ADeviceThatFailsInsideFails) {
  const auto recording = device().CaptureGraph([&] {
    device().Fail(absl::UnavailableError("a peer is gone"));
    return absl::OkStatus();
  });
  EXPECT_EQ(recording.status(), absl::UnavailableError("a peer is gone"));
}

TEST_P(CudaRecordingTest, ManyRecordingsAndPlaysInterleave) {
  constexpr int kSteps = 4;
  DeviceArray<uint8_t> state(device(), (kSteps + 1) * 1000, "test");
  std::vector<std::unique_ptr<DeviceGraph>> shifts;
  for (size_t i = 0; i < kSteps; ++i) {
    shifts.push_back(RecordOrDie(
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

INSTANTIATE_TEST_SUITE_P(Machines, CudaRecordingTest, ::testing::ValuesIn(TestMachines()),
                         NameOfMachine);

}  // namespace
}  // namespace cadre
