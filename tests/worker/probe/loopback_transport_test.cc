#include "worker/probe/loopback_transport.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "comm/collective_queue.h"
#include "comm/communicator.h"
#include "member/agreement.h"

namespace cadre {
namespace {

TEST(LoopbackTransportTest, CollectivesDoNotWait) {
  LoopbackTransport transport(7);
  EXPECT_EQ(transport.rank(), 0);
  EXPECT_EQ(transport.size(), 7);
  Communicator all = WholeGroup(transport);
  EXPECT_TRUE(all.Barrier().ok());
  std::vector<double> sums = {1, 2};
  EXPECT_TRUE(all.AllReduceSum(std::span<double>(sums)).ok());
}

TEST(LoopbackTransportTest, MovesReceiveWhatIsSent) {
  LoopbackTransport transport(3);
  Communicator all = WholeGroup(transport);
  const std::vector<float> mine = {5, 6};
  std::vector<float> first(2), second(3, 9);
  const auto out = std::as_bytes(std::span(mine));
  const std::vector<std::span<const std::byte>> send = {{}, out, out};
  const std::vector<std::span<std::byte>> receive = {
      {}, std::as_writable_bytes(std::span(first)), std::as_writable_bytes(std::span(second))};
  ASSERT_TRUE(all.AllToAll(send, receive).ok());
  EXPECT_EQ(first, mine);
  EXPECT_EQ(second, (std::vector<float>{5, 6, 5}));
  // Without sends, zeros are received.
  const std::vector<std::span<const std::byte>> nothing(3);
  ASSERT_TRUE(all.AllToAll(nothing, receive).ok());
  EXPECT_EQ(second, (std::vector<float>{0, 0, 0}));
}

TEST(LoopbackTransportTest, BackgroundChannelLeavesDataUnchanged) {
  LoopbackTransport transport(4);
  Communicator all = WholeGroup(transport, Transport::kBackground);
  std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> before = values;
  const std::vector<Interval> intervals = EqualIntervals(8, 4);
  const auto bytes = std::as_writable_bytes(std::span(values));
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kButterfly, Algorithm::kHalvingDoubling}) {
    ASSERT_TRUE(all.ReduceScatter(algorithm, DType::kFloat32, bytes, intervals).ok());
    ASSERT_TRUE(all.AllGather(algorithm, DType::kFloat32, bytes, intervals).ok());
    EXPECT_EQ(values, before);
  }
}

TEST(LoopbackTransportTest, QueueExecutesOperations) {
  LoopbackTransport transport(5);
  CollectiveQueue queue(transport);
  int done = 0;
  for (uint64_t key = 0; key < 3; ++key) {
    queue.Post(key, key, [&] {
      ++done;
      return absl::OkStatus();
    });
  }
  ASSERT_TRUE(queue.WaitAll().ok());
  EXPECT_EQ(done, 3);
}

TEST(LoopbackTransportTest, AbortIsPermanent) {
  LoopbackTransport transport(2);
  EXPECT_TRUE(transport.status().ok());
  transport.Abort(absl::CancelledError("enough"));
  transport.Abort(absl::InternalError("too late"));
  EXPECT_TRUE(absl::IsCancelled(transport.status()));
  Communicator all = WholeGroup(transport);
  EXPECT_TRUE(absl::IsCancelled(all.Barrier()));
}

}  // namespace
}  // namespace cadre
