// Limits of the Rounds service: streams, silence, memory, slow and dead links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "base/protocol.h"
#include "base/rpc/grpc_channel.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/rpc/slow_relay.h"
#include "tests/server/service_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers delay the release of memory, so the limit is higher with them. It still detects a copy
// of the model (64 MiB) per stream.
constexpr uint64_t kMemoryFactor = 16;
#else
constexpr uint64_t kMemoryFactor = 1;
#endif

// --- Bounds

TEST_F(ServiceTest, ExcessStreamsRetry) {
  Start({.disk_threads = 1, .max_stages = 1, .max_pulls = 1});
  Open();
  auto first = std::make_unique<RawStage>(*server_);
  ASSERT_TRUE(first->Send(Header(run_, {}, 0, 15, 4)));
  first->Resume();
  RawStage second(*server_);
  second.Send(Header(run_, {.group = 1}, 0, 15, 4));
  const absl::Status busy = second.Finish();
  EXPECT_EQ(busy.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(busy.message()), StartsWith("busy: "));
  // The client retries until the first stream has ended.
  absl::Status staged = absl::UnknownError("not finished");
  std::thread waiting([&] { staged = Stage({.group = 1}, Values(2, 15)); });
  first->context.TryCancel();
  first->Finish().IgnoreError();
  waiting.join();
  EXPECT_TRUE(staged.ok()) << staged;
}

// A rank that opens streams for one contribution again and again holds one slot.
TEST_F(ServiceTest, NewAttemptEndsTheOneBefore) {
  Start({.max_stages = 1, .max_silence = absl::Minutes(5)});
  Open();
  const v1::ContributionHeader header = Header(run_, {}, 0, 15, 4);
  RawStage first(*server_);
  ASSERT_TRUE(first.Send(header));
  first.Resume();
  RawStage second(*server_);
  ASSERT_TRUE(second.Send(header));
  EXPECT_EQ(second.Resume(), 0U);
  v1::StageReply reply;
  EXPECT_FALSE(first.stream->Read(&reply));
  EXPECT_EQ(first.Finish().code(), absl::StatusCode::kCancelled);
  // The one before has no slot that it could return.
  RawStage other(*server_);
  ASSERT_TRUE(other.Send(Header(run_, {.group = 1}, 0, 15, 4)));
  EXPECT_EQ(other.Finish().code(), absl::StatusCode::kResourceExhausted);
}

// A stream has no slot before its header proves that the caller is a rank.
TEST_F(ServiceTest, SilentStreamsHoldNoSlots) {
  Start({.max_stages = 1, .max_pulls = 1});
  Open();
  std::vector<std::unique_ptr<RawStage>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<RawStage>(*server_));
    if (i % 2 == 0) continue;
    v1::ContributionHeader header = Header(run_, {}, 0, 15, 4);
    header.set_generation(9);
    silent.back()->Send(header);
  }
  EXPECT_TRUE(Stage({}, Values(1, 15)).ok());
}

TEST_F(ServiceTest, StreamsOfSilentPeersEnd) {
  Start({.max_stages = 1, .max_silence = absl::Milliseconds(200)});
  Open();
  RawStage silent(*server_);
  RawStage begun(*server_);
  ASSERT_TRUE(begun.Send(Header(run_, {}, 0, 15, 4)));
  begun.Resume();
  v1::StageReply reply;
  EXPECT_FALSE(silent.stream->Read(&reply));
  EXPECT_EQ(silent.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_FALSE(begun.stream->Read(&reply));
  EXPECT_TRUE(Stage({.group = 1}, Values(1, 15)).ok()) << "the slot is free again";
}

// The peer has received the first chunks and reads no more.
TEST_F(ServiceTest, PullsOfSilentPeersEnd) {
  Start({.max_pulls = 1, .max_silence = absl::Milliseconds(200)});
  OpenLarge();
  const auto stub = server_->Stub();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(Soon()));
  v1::PullRequest request = PullOf(run_, 0, 0, run_.parameters());
  request.set_protocol(kProtocol);
  const auto stream = stub->Pull(&context, request);
  EXPECT_TRUE(server_->WaitFor("pulled_bytes", 1));
  const absl::Time until = Soon();
  grpc::Status status;
  do {
    grpc::ClientContext other;
    other.set_deadline(absl::ToChronoTime(Soon()));
    const auto second = stub->Pull(&other, PullOf(run_, 0, 0, 15));
    v1::PullReply reply;
    while (second->Read(&reply)) {
    }
    status = second->Finish();
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && absl::Now() < until);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServiceTest, StreamsHaveALimitInTotal) {
  Start({.max_streams = 2});
  Open();
  RawStage first(*server_);
  RawStage second(*server_);
  EXPECT_TRUE(second.Send(Header(run_, {}, 0, 15, 4)));
  second.Resume();
  EXPECT_EQ(RawStage(*server_).Finish().code(), absl::StatusCode::kResourceExhausted);
}

// Before a stream has proved anything, its peer has a share of all streams.
TEST_F(ServiceTest, OnePeerLeavesAQuarterOfTheStreams) {
  Start({.max_streams = 4});
  run_.groups = 3;
  Open();
  std::vector<std::unique_ptr<RawStage>> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(std::make_unique<RawStage>(*server_));
    ASSERT_TRUE(silent.back()->Send(Header(run_, {.group = uint32_t(i)}, 0, 15, 4)));
    silent.back()->Resume();
  }
  EXPECT_EQ(RawStage(*server_).Finish().code(), absl::StatusCode::kResourceExhausted);
}

// --- Cost

int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (absl::StartsWith(line, "VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

void ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  EXPECT_TRUE(file.good());
}

TEST_F(ServiceTest, MemoryIsBounded) {
  OpenLarge();
  const uint64_t n = run_.parameters();
  ASSERT_EQ(n, 16u << 20);
  const std::vector<float> values = Values(1, n);
  std::vector<float> out(n, 1.0F);
  const auto grown = [](const auto& work) {
    ResetPeakMemory();
    // The kernel sums up the counts of the threads imprecisely, so the difference may be negative.
    const int64_t before = PeakMemory();
    work();
    return PeakMemory() - before;
  };
  // Client and server together hold a few messages of 1 MiB each, and those that flow control lets
  // the client send ahead of a slow disk. A copy of the model would take 64 MiB.
  const int64_t allowed = int64_t{kMemoryFactor} * (56 << 20);
  EXPECT_LT(grown([&] { ASSERT_TRUE(Stage({}, values, 256 << 10).ok()); }), allowed);
  EXPECT_LT(grown([&] { ASSERT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), ""); }), allowed);
  Traffic traffic;
  EXPECT_LT(grown([&] {
              ASSERT_TRUE(server_->Client()->Pull(PullOf(run_, 1, 0, n), out, &traffic).ok());
            }),
            allowed);
  EXPECT_TRUE(SameBits(out, values));
}

TEST_F(ServiceTest, MessageOverheadIsSmall) {
  run_.in = 511;
  run_.out = 1024;
  Open();
  const uint64_t n = run_.parameters();
  const std::vector<float> values = Values(1, n);
  std::vector<float> out(n);
  Traffic traffic;
  v1::ContributionHeader header = Header(run_, {}, 0, n, 0);
  ASSERT_TRUE(server_->Client()->Stage(header, values, &traffic).ok());
  ASSERT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  ASSERT_TRUE(server_->Client()->Pull(PullOf(run_, 1, 0, n), out, &traffic).ok());
  EXPECT_EQ(traffic.payload_sent, 4 * n);
  EXPECT_EQ(traffic.payload_received, 4 * n);
  const uint64_t payload = traffic.payload_sent + traffic.payload_received;
  const uint64_t messages = traffic.message_sent + traffic.message_received;
  EXPECT_GT(messages, payload);
  EXPECT_LT(static_cast<double>(messages), 1.01 * static_cast<double>(payload));
}

// --- Slow and dead links

TEST_F(ServiceTest, SlowTransfersContinue) {
  run_.in = 2047;
  run_.out = 1024;
  Open();
  const int64_t n = run_.parameters();
  // Much more than buffers hold, and four seconds in all.
  const SlowRelay link(server_->port(), {.bytes_per_second = 2 << 20});
  const absl::Duration silence = absl::Seconds(2);
  std::atomic<int> chunks = 0;
  RoundsClient client([&] { return link.address(); }, {.silence = silence}, [&] { ++chunks; });
  const std::vector<float> values = Values(1, n);
  Traffic traffic;
  const absl::Time start = absl::Now();
  const absl::Status staged =
      client.Stage(Header(run_, {}, 0, n, kChunkElements / 16), values, &traffic);
  EXPECT_TRUE(staged.ok()) << staged;
  EXPECT_GT(absl::Now() - start, 1.5 * silence);
  EXPECT_GE(chunks, n / (kChunkElements / 16));
  ASSERT_EQ(Apply(MakeApply(run_, 1, {{}})).error(), "");
  std::vector<float> out(n);
  ASSERT_TRUE(client.Pull(PullOf(run_, 1, 0, n), out, &traffic).ok());
  EXPECT_TRUE(SameBits(out, values));
}

TEST_F(ServiceTest, SilentTransfersEnd) {
  run_.in = 511;
  run_.out = 512;
  Open();
  const int64_t n = run_.parameters();
  const SlowRelay link(server_->port(), {.max_bytes = 100'000});
  RoundsClient client([&] { return link.address(); }, {.silence = absl::Milliseconds(300)});
  Traffic traffic;
  EXPECT_THAT(client.Stage(Header(run_, {}, 0, n, 4096), Values(1, n), &traffic),
              IsError(absl::StatusCode::kDeadlineExceeded, "last: "));
}

// Every attempt sends the same chunks again.
TEST_F(ServiceTest, FullDiskEndsTheTransfer) {
  run_.in = 511;
  run_.out = 512;
  Open();
  const int64_t n = run_.parameters();
  RoundsClient client([&] { return server_->address(); }, {.silence = absl::Milliseconds(500)});
  Traffic traffic;
  const FileSizeLimit full(1000);
  EXPECT_THAT(client.Stage(Header(run_, {}, 0, n, 4096), Values(1, n), &traffic),
              IsError(absl::StatusCode::kDeadlineExceeded, "last: "));
}

TEST_F(ServiceTest, CallsToUnreachableShardsEnd) {
  RoundsClient nowhere([] { return std::string("127.0.0.1:1"); },
                       {.silence = absl::Milliseconds(300)});
  Traffic traffic;
  EXPECT_THAT(nowhere.Stage(Header(run_, {}, 0, 15, 4), Values(1, 15), &traffic),
              IsError(absl::StatusCode::kDeadlineExceeded, "last: "));
  EXPECT_EQ(traffic.payload_sent, 0u);
}

}  // namespace
}  // namespace cadre::testing
