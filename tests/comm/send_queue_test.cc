#include "comm/send_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {
namespace {

// Larger than what may be in flight without a receive.
constexpr size_t kBytes = size_t{4} << 20;
using Message = std::vector<std::byte>;

Transfer SendTo(int peer, Message& data) { return {Transfer::Kind::kSend, peer, data}; }

absl::Status Receive(Transport& transport, uint32_t number, int peer, Message& into) {
  const Transfer transfer{Transfer::Kind::kReceive, peer, into};
  return transport.Run(Transport::kReceives, ReceiveTag(number), {&transfer, 1}, {});
}

// Both ranks send large messages and only then receive: without the background both would wait.
TEST(SendQueue, SendsInTheBackground) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  OnRanks(2, [&](int rank) {
    Message out(kBytes, std::byte(rank + 1)), in(kBytes);
    SendQueue queue(*group[rank]);
    const uint32_t number = rank;
    queue.Expect({&number, 1});
    queue.Post(number, {SendTo(1 - rank, out)});
    EXPECT_EQ(Receive(*group[rank], 1 - rank, 1 - rank, in), absl::OkStatus());
    EXPECT_EQ(queue.Wait(), absl::OkStatus());
    EXPECT_TRUE(in == Message(kBytes, std::byte(2 - rank)));
  });
}

TEST(SendQueue, SendsInTheDeclaredOrder) {
  const Transports group = MakeThreadTransports(3, absl::Seconds(60));
  OnRanks(3, [&](int rank) {
    if (rank == 0) {
      std::array<Message, 4> out;
      for (int i = 0; i < 4; ++i) out[i].assign(kBytes, std::byte(i));
      SendQueue queue(*group[0]);
      const std::vector<uint32_t> numbers = {10, 11, 12, 13};
      queue.Expect(numbers);
      // The last one first.
      for (const int i : {3, 1, 0, 2}) {
        queue.Post(10 + i, {SendTo(1, out[i]), SendTo(2, out[i])});
      }
      EXPECT_EQ(queue.Wait(), absl::OkStatus());
      return;
    }
    for (int i = 0; i < 4; ++i) {
      Message in(kBytes);
      EXPECT_EQ(Receive(*group[rank], 10 + i, 0, in), absl::OkStatus());
      EXPECT_TRUE(in == Message(kBytes, std::byte(i))) << i;
    }
  });
}

// Rank 1 receives the second message only after rank 0 has waited for the first.
TEST(SendQueue, WaitForReturnsWhenTheseAreSent) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  std::atomic<bool> waited = false;
  OnRanks(2, [&](int rank) {
    if (rank == 0) {
      Message first(kBytes), second(kBytes);
      SendQueue queue(*group[0]);
      const std::vector<uint32_t> numbers = {1, 2};
      queue.Expect(numbers);
      queue.Post(2, {SendTo(1, second)});
      queue.Post(1, {SendTo(1, first)});
      EXPECT_EQ(queue.WaitFor({&numbers[0], 1}), absl::OkStatus());
      waited = true;
      waited.notify_all();
      EXPECT_EQ(queue.Wait(), absl::OkStatus());
      return;
    }
    Message in(kBytes);
    EXPECT_EQ(Receive(*group[1], 1, 0, in), absl::OkStatus());
    waited.wait(false);
    EXPECT_EQ(Receive(*group[1], 2, 0, in), absl::OkStatus());
  });
}

TEST(SendQueue, WaitReturnsTheError) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  Message out(kBytes);
  SendQueue queue(*group[0]);
  const std::vector<uint32_t> numbers = {1, 2};
  queue.Expect(numbers);
  queue.Post(1, {SendTo(1, out)});
  group[1]->Abort(absl::DataLossError("of a test"));
  EXPECT_TRUE(absl::IsUnavailable(queue.Wait()) || absl::IsDataLoss(queue.Wait()));
  queue.Post(2, {SendTo(1, out)});
  EXPECT_FALSE(queue.Wait().ok());
  EXPECT_FALSE(queue.WaitFor(numbers).ok());
}

// Peers that wait for a message that is never sent must not wait for their timeout.
TEST(SendQueue, AbortsIfMessagesAreLeft) {
  const Transports group = MakeThreadTransports(2, absl::Seconds(60));
  {
    SendQueue queue(*group[0]);
    const uint32_t number = 1;
    queue.Expect({&number, 1});
  }
  EXPECT_FALSE(group[0]->status().ok());
}

}  // namespace
}  // namespace cadre
