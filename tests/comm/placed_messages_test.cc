// Messages between layers of different ranks, on emulated devices with a fake NCCL. Those on the
// host are tested with the network and with the queue of sends.
#include "comm/placed_messages.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "tests/comm/transport/ranks.h"
#include "tests/emulator/emulated_rank.h"
#include "tests/emulator/fake_nccl.h"

namespace cadre {
namespace {

using Mode = EmulatedCuda::Mode;

constexpr size_t kElements = 1000;

// Values in the memory of a device.
class DeviceValues {
 public:
  DeviceValues(Device& device, float value) : device_(device), values_(device, kElements, "test") {
    Set(value);
  }
  void Set(float value) {
    const std::vector<float> host(kElements, value);
    device_.CopyIn(host.data(), values_.data(), values_.span().size_bytes());
  }
  std::vector<Transfer> SendTo(int peer) { return {Move(Transfer::Kind::kSend, peer)}; }
  std::vector<Transfer> ReceiveFrom(int peer) { return {Move(Transfer::Kind::kReceive, peer)}; }
  // The value of all elements. Blocks.
  float Get() const {
    std::vector<float> host(kElements);
    EXPECT_TRUE(device_.CopyOut(values_.data(), host.data(), values_.span().size_bytes()).ok());
    EXPECT_EQ(host, std::vector<float>(kElements, host[0]));
    return host[0];
  }

 private:
  Transfer Move(Transfer::Kind kind, int peer) {
    return {kind, peer, std::as_writable_bytes(values_.span())};
  }
  Device& device_;
  DeviceArray<float> values_;
};

class PlacedMessagesTest : public testing::TestWithParam<Mode> {
 protected:
  // Runs two ranks.
  using Body = std::function<void(int rank, PlacedMessages& messages, Device& device)>;
  void OnPair(const Body& body) {
    const Transports hosts = MakeThreadTransports(2, absl::Seconds(60));
    FakeNccl nccl;
    statuses_.resize(2);
    OnRanks(2, [&](int rank) {
      const EmulatedRank emulated = MakeEmulatedRank(GetParam());
      auto transport =
          MakeNcclTransport(nccl.api(), *emulated.device, *emulated.kernels, *hosts[rank], {});
      ASSERT_TRUE(transport.ok()) << transport.status();
      ASSERT_TRUE((*transport)->PrepareMessages().ok());
      {
        const auto messages = PlacedMessages::Make(**transport, *emulated.device);
        body(rank, *messages, *emulated.device);
      }
      statuses_[rank] = (*transport)->status();
      emulated.device->Synchronize().IgnoreError();
    });
  }

  // Those of the transports, when the messages are destroyed.
  std::vector<absl::Status> statuses_;
};

INSTANTIATE_TEST_SUITE_P(Modes, PlacedMessagesTest, testing::Values(Mode::kInline, Mode::kThreads),
                         [](const auto& info) {
                           return info.param == Mode::kInline ? "Inline" : "Threads";
                         });

float Receive(PlacedMessages& messages, Device& device, uint32_t number) {
  DeviceValues received(device, 0);
  messages.StartReceiving(number, received.ReceiveFrom(0));
  EXPECT_TRUE(messages.FinishReceiving().ok());
  return received.Get();
}

TEST_P(PlacedMessagesTest, AreSentInTheOrderOfTheirNumbers) {
  // Numbers wrap around.
  const std::vector<uint32_t> numbers = {0xffffffff, 0, 1};
  OnPair([&](int rank, PlacedMessages& messages, Device& device) {
    if (rank == 1) {
      for (const float expected : {3.0F, 2.0F, 1.0F}) {
        EXPECT_EQ(Receive(messages, device, numbers[3 - expected]), expected);
      }
      return;
    }
    messages.Expect(numbers);
    DeviceValues one(device, 1), two(device, 2), three(device, 3);
    messages.Post(numbers[2], one.SendTo(1));
    messages.Post(numbers[1], two.SendTo(1));
    EXPECT_TRUE(messages.Precede(numbers[0]).ok()) << "nothing has a lower number";
    messages.Post(numbers[0], three.SendTo(1));
    EXPECT_TRUE(messages.Precede(numbers[2]).ok());
    EXPECT_TRUE(messages.AwaitSent(std::vector{numbers[0], numbers[1]}).ok());
    EXPECT_TRUE(messages.AwaitAll().ok());
    EXPECT_TRUE(device.Synchronize().ok());
  });
}

// Otherwise both ranks would wait for the other one to receive.
TEST_P(PlacedMessagesTest, OfOneNumberAreExchanged) {
  OnPair([&](int rank, PlacedMessages& messages, Device& device) {
    DeviceValues sent(device, rank + 1), received(device, 0);
    messages.Expect(std::vector<uint32_t>{7});
    messages.StartReceiving(7, received.ReceiveFrom(1 - rank));
    messages.Post(7, sent.SendTo(1 - rank));
    EXPECT_TRUE(messages.Precede(7).ok());
    EXPECT_TRUE(messages.FinishReceiving().ok());
    EXPECT_EQ(received.Get(), 2 - rank);
    EXPECT_TRUE(messages.AwaitAll().ok());
  });
}

TEST_P(PlacedMessagesTest, LeavesTheGroupIfMessagesAreUnsent) {
  OnPair([&](int rank, PlacedMessages& messages, Device& /*device*/) {
    if (rank == 0) messages.Expect(std::vector<uint32_t>{1});
  });
  EXPECT_EQ(statuses_[0].code(), absl::StatusCode::kCancelled);
}

using MessagesOnStreams = PlacedMessagesTest;
INSTANTIATE_TEST_SUITE_P(Threads, MessagesOnStreams, testing::Values(Mode::kThreads));

TEST_P(MessagesOnStreams, DoNotHoldUpTheComputation) {
  absl::Notification computed;
  OnPair([&](int rank, PlacedMessages& messages, Device& device) {
    if (rank == 1) {
      EXPECT_EQ(Receive(messages, device, 1), 5);
      computed.WaitForNotification();
      EXPECT_EQ(Receive(messages, device, 2), 5);
      return;
    }
    messages.Expect(std::vector<uint32_t>{1, 2});
    // Allocations wait for all streams.
    DeviceValues sent(device, 5), other(device, 0);
    // Ranks compare the first message of a kind on the host.
    messages.Post(1, sent.SendTo(1));
    EXPECT_TRUE(messages.Precede(2).ok());
    messages.Post(2, sent.SendTo(1));
    EXPECT_TRUE(messages.PrecedeAll().ok());
    other.Set(6);
    EXPECT_EQ(other.Get(), 6);
    computed.Notify();
    EXPECT_TRUE(messages.AwaitAll().ok());
    EXPECT_TRUE(device.Synchronize().ok());
  });
}

}  // namespace
}  // namespace cadre
