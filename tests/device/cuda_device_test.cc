// Tests memory, streams, events and copies against device.h, on the machines that the program links
// (test_machine.h).
#include <cstring>
#include <vector>

#include "device/cuda/cuda_machine.h"
#include "gmock/gmock.h"
#include "tests/device/test_machine.h"

namespace cadre {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A copy of this size is still pending when the next call is made.
constexpr size_t kLarge = size_t{4} << 20;

class CudaDeviceTest : public OnDevice {};

TEST_P(CudaDeviceTest, DescribesTheDevice) {
  EXPECT_EQ(device().kind(), DeviceKind::kCuda);
  EXPECT_THAT(device().name(), StartsWith("cuda:"));
  EXPECT_GE(device().capability(), 80);
  EXPECT_GE(device().processors(), 1);
  EXPECT_TRUE(device().status().ok());
  EXPECT_FALSE(device().lost());
  const auto described = DescribeCuda(device().api());
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_THAT(*described, HasSubstr(device().name().substr(5)));
}

TEST_P(CudaDeviceTest, StreamsDiffer) {
  EXPECT_EQ(device().current_stream(), Stream::kCompute);
  {
    OnStream stream(device(), Stream::kMoves);
    EXPECT_EQ(device().stream(), device().stream(Stream::kMoves));
  }
  EXPECT_EQ(device().stream(), device().stream(Stream::kCompute));
  EXPECT_NE(device().stream(Stream::kCompute), device().stream(Stream::kMoves));
  EXPECT_NE(device().stream(Stream::kCommunication), device().stream(Stream::kCopies));
}

TEST_P(CudaDeviceTest, MemoryIsZeroAlignedAndCounted) {
  EXPECT_EQ(device().Allocate(0, "nothing"), nullptr);
  {
    DeviceArray<uint8_t> array(device(), 1000, "weights");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 256, 0U);
    EXPECT_THAT(Out(array), Each(Eq(0)));
    EXPECT_EQ(device().bytes_in_use(), 1000);
    ASSERT_EQ(device().memory_uses().size(), 1U);
    EXPECT_EQ(device().memory_uses()[0].purpose, "weights");
    // The next array reuses this memory.
    device().CopyIn(Bytes(1000, 1).data(), array.data(), 1000);
  }
  EXPECT_EQ(device().bytes_in_use(), 0);
  EXPECT_EQ(device().peak_bytes(), 1000);
  DeviceArray<uint8_t> again(device(), 1000, "weights");
  EXPECT_THAT(Out(again), Each(Eq(0)));
}

TEST_P(CudaDeviceTest, CopiesRoundTrip) {
  // About the size of a chunk of the ring, of the whole ring and of several rings.
  for (const size_t size : {size_t{1}, size_t{255}, size_t{256}, size_t{4095}, size_t{4096},
                            size_t{4097}, size_t{16384}, size_t{100001}, kLarge + 3}) {
    const std::vector<uint8_t> bytes = Bytes(size, size);
    const DeviceArray<uint8_t> array = In(bytes);
    EXPECT_EQ(Out(array), bytes) << size;
  }
  device().CopyIn(nullptr, nullptr, 0);
  EXPECT_TRUE(device().CopyOut(nullptr, nullptr, 0).ok());
}

TEST_P(CudaDeviceTest, CopyInReadsBeforeItReturns) {
  std::vector<DeviceArray<uint8_t>> arrays;
  std::vector<uint8_t> bytes;
  for (uint32_t i = 0; i < 50; ++i) {
    bytes = Bytes(3000, i);
    arrays.push_back(In(bytes));
    std::fill(bytes.begin(), bytes.end(), uint8_t{0xEE});
  }
  for (uint32_t i = 0; i < 50; ++i) ASSERT_EQ(Out(arrays[i]), Bytes(3000, i)) << i;
}

TEST_P(CudaDeviceTest, PinnedCopiesDoNotBlock) {
  PinnedArray<uint8_t> in(device(), kLarge);
  PinnedArray<uint8_t> out(device(), kLarge);
  EXPECT_THAT(std::vector<uint8_t>(in.data(), in.data() + 100), Each(Eq(0)));
  const std::vector<uint8_t> bytes = Bytes(kLarge, 7);
  std::memcpy(in.data(), bytes.data(), kLarge);
  DeviceArray<uint8_t> array(device(), kLarge, "test");
  const int64_t waits = device().host_syncs();
  device().CopyToDeviceAsync(in.data(), array.data(), kLarge);
  device().CopyToHostAsync(array.data(), out.data(), kLarge);
  EXPECT_EQ(device().host_syncs(), waits);
  ASSERT_TRUE(device().Synchronize().ok());
  EXPECT_EQ(std::memcmp(out.data(), bytes.data(), kLarge), 0);
  // Copies may also begin in the middle of pinned memory.
  device().CopyToDeviceAsync(in.data() + 100, array.data(), 50);
  ASSERT_TRUE(device().Synchronize().ok());
}

TEST_P(CudaDeviceTest, AsyncCopiesNeedPinnedMemory) {
  std::vector<uint8_t> plain(100);
  DeviceArray<uint8_t> array(device(), 100, "test");
  device().CopyToDeviceAsync(plain.data(), array.data(), 100);
  EXPECT_EQ(device().status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(device().status().message(), HasSubstr("not pinned"));
}

TEST_P(CudaDeviceTest, CopyAndZeroWithinTheDevice) {
  const std::vector<uint8_t> bytes = Bytes(10000, 3);
  const DeviceArray<uint8_t> a = In(bytes);
  DeviceArray<uint8_t> b(device(), 10000, "test");
  device().Copy(a.data(), b.data(), 10000);
  device().Zero(a.data() + 100, 200);
  EXPECT_EQ(Out(b), bytes);
  std::vector<uint8_t> expected = bytes;
  std::fill(expected.begin() + 100, expected.begin() + 300, uint8_t{0});
  EXPECT_EQ(Out(a), expected);
}

TEST_P(CudaDeviceTest, EventsOrderStreams) {
  // The streams form a ring in which each waits for the one before it: values that enter the first
  // stream leave the last one in order.
  constexpr int kRounds = 20;
  std::vector<DeviceArray<uint8_t>> stations;
  for (int i = 0; i < kDeviceStreams; ++i) stations.emplace_back(device(), kLarge, "test");
  DeviceArray<uint8_t> source(device(), kLarge, "test");
  std::vector<std::unique_ptr<DeviceEvent>> done;
  for (int i = 0; i < kDeviceStreams; ++i) done.push_back(device().MakeEvent());
  DeviceArray<uint8_t> kept(device(), kRounds * 4, "test");

  std::vector<uint8_t> expected;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const std::vector<uint8_t> mark = Bytes(4, round);
    expected.insert(expected.end(), mark.begin(), mark.end());
    for (size_t i = 0; i < kDeviceStreams; ++i) {
      OnStream stream(device(), kAllStreams[i]);
      const size_t before = (i + kDeviceStreams - 1) % kDeviceStreams;
      device().WaitFor(*done[before]);
      if (i == 0) {
        device().CopyIn(mark.data(), source.data() + kLarge - 4, 4);
        device().Copy(source.data(), stations[0].data(), kLarge);
      } else {
        device().Copy(stations[before].data(), stations[i].data(), kLarge);
      }
      if (i + 1 == kDeviceStreams) {
        device().Copy(stations[i].data() + kLarge - 4, kept.data() + size_t{round} * 4, 4);
      }
      device().Record(*done[i]);
    }
  }
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 0);
  ASSERT_TRUE(device().Await(*done.back()).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 1);
  EXPECT_EQ(Out(kept), expected);
}

TEST_P(CudaDeviceTest, UnrecordedEventsAreNotAwaited) {
  const auto event = device().MakeEvent();
  device().WaitFor(*event);
  EXPECT_TRUE(device().Await(*event).ok());
  EXPECT_EQ(device().host_syncs(), 0);
}

TEST_P(CudaDeviceTest, FreedMemoryIsReusedInOrder) {
  const std::vector<uint8_t> bytes = Bytes(kLarge, 5);
  for (int i = 0; i < 10; ++i) {
    DeviceArray<uint8_t> copy(device(), kLarge, "test");
    uint8_t* address = nullptr;
    {
      const DeviceArray<uint8_t> original = In(bytes);
      address = original.data();
      const auto there = device().MakeEvent();
      device().Record(*there);
      OnStream stream(device(), Stream::kMoves);
      device().WaitFor(*there);
      device().Copy(original.data(), copy.data(), kLarge);
    }
    // The array is freed while another stream reads it; the next array has the same memory and must
    // be zero.
    DeviceArray<uint8_t> next(device(), kLarge, "test");
    EXPECT_EQ(next.data(), address);
    {
      // The next array is used on a third stream without an event.
      OnStream stream(device(), Stream::kCopies);
      device().CopyIn(bytes.data(), next.data(), 100);
      std::vector<uint8_t> expected(kLarge);
      std::copy(bytes.begin(), bytes.begin() + 100, expected.begin());
      ASSERT_EQ(Out(next), expected);
    }
    ASSERT_TRUE(device().Synchronize().ok());
    ASSERT_EQ(Out(copy), bytes);
  }
}

TEST_P(CudaDeviceTest, HostSyncsAreCounted) {
  std::vector<uint8_t> host(100000);
  EXPECT_EQ(device().host_syncs(), 0);
  DeviceArray<uint8_t> array(device(), host.size(), "test");
  const auto event = device().MakeEvent();
  device().Record(*event);
  device().WaitFor(*event);
  EXPECT_EQ(device().host_syncs(), 0);
  ASSERT_TRUE(device().Await(*event).ok());
  ASSERT_TRUE(device().Synchronize().ok());
  // Many chunks, but one host synchronisation.
  ASSERT_TRUE(device().CopyOut(array.data(), host.data(), host.size()).ok());
  EXPECT_EQ(device().host_syncs_for(HostSync::kEvent), 1);
  EXPECT_EQ(device().host_syncs_for(HostSync::kDevice), 1);
  EXPECT_EQ(device().host_syncs_for(HostSync::kCopyOut), 1);
  EXPECT_EQ(device().host_syncs(), 3);
  { PinnedArray<uint8_t> pinned(device(), 100); }
  EXPECT_EQ(device().host_syncs_for(HostSync::kMemory), 1);
}

TEST_P(CudaDeviceTest, FirstErrorIsKeptAndStopsWork) {
  const std::vector<uint8_t> bytes = Bytes(100, 1);
  const DeviceArray<uint8_t> array = In(bytes);
  const auto event = device().MakeEvent();
  device().Record(*event);
  device().Fail(absl::UnavailableError("a peer is lost"));
  device().Fail(absl::InternalError("a later error"));
  EXPECT_TRUE(device().failed());
  const absl::Status first = absl::UnavailableError("a peer is lost");
  EXPECT_EQ(device().status(), first);
  EXPECT_EQ(device().Await(*event), first);
  EXPECT_EQ(device().Synchronize(), first);
  std::vector<uint8_t> out(100);
  EXPECT_EQ(device().CopyOut(array.data(), out.data(), 100), first);
  EXPECT_EQ(device().Allocate(100, "test"), nullptr);
  EXPECT_EQ(device().AllocateHost(100), nullptr);
  device().Zero(array.data(), 100);
  device().Record(*event);
  device().WaitFor(*device().MakeEvent());
  EXPECT_EQ(device().CaptureGraph([] { return absl::OkStatus(); }).status(), first);
  // The device itself is still usable.
  EXPECT_FALSE(device().lost());
}

TEST_P(CudaDeviceTest, OutOfMemoryErrorNamesThePurpose) {
  device().set_allocation_label("layer 'conv3'");
  EXPECT_EQ(device().Allocate(size_t{1} << 50, "activations"), nullptr);
  EXPECT_EQ(device().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(device().status().message(),
              HasSubstr("cannot allocate 1024.0 TiB for activations (layer 'conv3'): the device"));
  EXPECT_FALSE(device().lost());
}

TEST_P(CudaDeviceTest, PinnedMemoryErrorsAreReported) {
  EXPECT_EQ(device().AllocateHost(size_t{1} << 50), nullptr);
  EXPECT_EQ(device().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(device().status().message(), HasSubstr("pinned host memory"));
}

INSTANTIATE_TEST_SUITE_P(Machines, CudaDeviceTest, ::testing::ValuesIn(TestMachines()),
                         NameOfMachine);

}  // namespace
}  // namespace cadre
