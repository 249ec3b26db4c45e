// The Rounds service and its client over connections on loopback.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/protocol.h"
#include "base/rpc/grpc_channel.h"
#include "server/client/refusal.h"
#include "server/client/version_reader.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/server/service_fixture.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ServiceTest, StagesAppliesAndPulls) {
  Open();
  const std::vector<float> first = Values(1, 15);
  Traffic traffic;
  ASSERT_TRUE(Stage({}, first, 4, &traffic).ok());
  EXPECT_EQ(traffic.payload_sent, 60u);
  EXPECT_EQ(server_->counters().Get("staged_bytes"), 60u);
  EXPECT_EQ(server_->counters().Get("contributions_staged"), 1u);
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), Digest(first, 0));
  std::vector<float> out(10);
  ASSERT_TRUE(server_->Client()->Pull(PullOf(run_, 1, 5, 15), out, &traffic).ok());
  EXPECT_TRUE(SameBits(out, std::span(first).subspan(5)));
  EXPECT_EQ(traffic.payload_received, 40u);
  EXPECT_EQ(server_->counters().Get("pulled_bytes"), 40u);
}

TEST_F(ServiceTest, UsersReadTheNewestVersion) {
  Open();
  v1::LocateReply located;
  located.set_lineage(run_.lineage);
  *located.mutable_spec() = run_.Open().spec();
  located.add_shards()->set_address(server_->address());
  int located_times = 0;
  const auto locate = [&]() -> absl::StatusOr<v1::LocateReply> {
    // When it is asked first, version 0 has just been replaced.
    located.set_version(++located_times == 1 ? 0 : 2);
    return located;
  };
  const auto read = [&] { return ReadNewestVersion(run_.run, locate, Credentials::Insecure()); };
  for (const uint32_t round : {1, 2}) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, 15)).ok());
    located.set_digest(Apply(MakeApply(run_, round, {{}})).digest());
  }
  const auto version = read();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(located_times, 2);
  EXPECT_TRUE(SameBits(version->values, Values(2, 15)));
  located.set_digest(1);
  EXPECT_TRUE(absl::IsDataLoss(read().status()));
  located.mutable_shards(0)->clear_address();
  EXPECT_TRUE(absl::IsUnavailable(read().status()));
}

TEST_F(ServiceTest, StagingAgainSendsNoValues) {
  Open();
  ASSERT_TRUE(Stage({}, Values(1, 15)).ok());
  Traffic traffic;
  ASSERT_TRUE(Stage({}, Values(1, 15), 4, &traffic).ok());
  EXPECT_EQ(traffic.payload_sent, 0u);
  EXPECT_GT(traffic.message_sent, 0u);
}

TEST_F(ServiceTest, EmptyContributionIsStaged) {
  Open();
  EXPECT_TRUE(Stage({.rank = 1}, {}).ok());
  EXPECT_TRUE(server_->Client()->Pull(PullOf(run_, 0, 3, 3), {}, nullptr).ok());
}

TEST_F(ServiceTest, ResumesAfterCancellation) {
  Open();
  const std::vector<float> values = Values(1, 15);
  {
    RawStage raw(*server_);
    ASSERT_TRUE(raw.Send(Header(run_, {}, 0, 15, 4)));
    EXPECT_EQ(raw.Resume(), 0u);
    ASSERT_TRUE(raw.Send(MakeChunk(0, std::span(values).subspan(0, 4))));
    ASSERT_TRUE(raw.Send(MakeChunk(1, std::span(values).subspan(4, 4))));
    ASSERT_TRUE(server_->WaitFor("staged_bytes", 32));
    raw.context.TryCancel();
    EXPECT_FALSE(raw.Finish().ok());
  }
  Traffic traffic;
  ASSERT_TRUE(Stage({}, values, 4, &traffic).ok());
  EXPECT_EQ(traffic.payload_sent, 28u);
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), Digest(values, 0));
}

TEST_F(ServiceTest, ClientRetriesFullDisk) {
  Open();
  absl::Status staged = absl::UnknownError("not finished");
  std::thread staging;
  {
    const FileSizeLimit full(100);
    staging = std::thread([&] { staged = Stage({}, Values(1, 15)); });
    EXPECT_TRUE(server_->WaitFor("disk_full", 1));
  }
  staging.join();
  EXPECT_TRUE(staged.ok()) << staged;
}

TEST_F(ServiceTest, ResumesAtNewAddress) {
  Open();
  const std::vector<float> values = Values(1, 15);
  {
    RawStage raw(*server_);
    ASSERT_TRUE(raw.Send(Header(run_, {}, 0, 15, 4)));
    raw.Resume();
    ASSERT_TRUE(raw.Send(MakeChunk(0, std::span(values).subspan(0, 4))));
    ASSERT_TRUE(server_->WaitFor("staged_bytes", 16));
    raw.context.TryCancel();
    EXPECT_FALSE(raw.Finish().ok());
  }
  const std::string old_address = server_->address();
  Start({});
  Open();
  // The first attempt gets no address, the second the old one.
  std::atomic<int> attempts = 0;
  RoundsClient client([&]() -> std::string {
    const int n = attempts++;
    if (n == 0) return "";
    return n == 1 ? old_address : server_->address();
  });
  Traffic traffic;
  ASSERT_TRUE(client.Stage(Header(run_, {}, 0, 15, 4), values, &traffic).ok());
  EXPECT_GE(attempts, 3);
  EXPECT_EQ(traffic.payload_sent, 44u);
  EXPECT_EQ(Apply(MakeApply(run_, 1, {{}})).digest(), Digest(values, 0));
}

// ledger_test and shard_host_test test the rules. This test shows that a refusal at any point of a
// call reaches the caller by name.
TEST_F(ServiceTest, RefusalsReachTheCaller) {
  Open();
  v1::ContributionHeader header = Header(run_, {}, 0, 15, 4);
  header.set_protocol(kProtocol + 2);
  RawStage by_header(*server_);
  ASSERT_TRUE(by_header.Send(header));
  const absl::Status status = by_header.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("protocol: "));
  EXPECT_EQ(server_->counters().Get("refused_protocol"), 1u);

  RawStage by_chunk(*server_);
  ASSERT_TRUE(by_chunk.Send(Header(run_, {}, 0, 15, 4)));
  EXPECT_EQ(by_chunk.Resume(), 0u);
  v1::Chunk damaged = MakeChunk(0, Values(1, 4));
  damaged.mutable_data()->at(3) ^= 1;
  ASSERT_TRUE(by_chunk.Send(damaged));
  const absl::Status crc = by_chunk.Finish();
  EXPECT_EQ(crc.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(crc.message()), StartsWith("wrong_crc: chunk 0"));

  std::vector<float> out(15);
  Traffic traffic;
  v1::PullRequest other = PullOf(run_, 0, 0, 15);
  other.set_lineage("other");
  EXPECT_THAT(server_->Client()->Pull(other, out, &traffic),
              IsError(absl::StatusCode::kFailedPrecondition, "wrong_lineage"));
  EXPECT_TRUE(Stage({}, Values(1, 15)).ok());
}

// A worker of one run cannot touch another run: it does not know the keys of its generations.
TEST_F(ServiceTest, CallersWithoutTheKeyAreRefused) {
  Open();
  SecretKey other;
  other.fill(1);
  RoundsClient client([&] { return server_->address(); }, {.silence = absl::Seconds(60)}, nullptr,
                      other);
  Traffic traffic;
  EXPECT_THAT(client.Stage(Header(run_, {}, 0, 15, 4), Values(1, 15), &traffic),
              IsError(absl::StatusCode::kPermissionDenied, "wrong_key"));
  std::vector<float> out(15);
  EXPECT_THAT(client.Pull(PullOf(run_, 0, 0, 15), out, &traffic),
              IsError(absl::StatusCode::kPermissionDenied, "wrong_key"));
  EXPECT_EQ(server_->counters().Get("refused_wrong_key"), 2u);
  // A proof is valid only for the message that was signed.
  RawStage changed(*server_);
  v1::ContributionHeader header = Header(run_, {}, 0, 15, 4);
  header.set_samples(header.samples() + 1);
  changed.Send(header);
  EXPECT_THAT(changed.Finish(), IsError(absl::StatusCode::kPermissionDenied, "wrong_key"));
  EXPECT_TRUE(Stage({}, Values(1, 15)).ok());
}

// The coordinator's message with the key may arrive later than the first call of a rank.
TEST_F(ServiceTest, CallWaitsForTheKey) {
  Open();
  absl::Status staged;
  std::thread rank([&] { staged = Stage({.generation = 2}, Values(1, 15)); });
  EXPECT_TRUE(server_->WaitFor("refused_busy", 1));
  server_->host().Fence(FenceOf(run_.run, 0, 2));
  rank.join();
  EXPECT_TRUE(staged.ok()) << staged;
}

TEST_F(ServiceTest, OversizedMessageIsRefused) {
  Open();
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  const auto stub = v1::Rounds::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(Soon()));
  const auto stream = stub->Stage(&context);
  v1::StageRequest request;
  *request.mutable_header() = Header(run_, {}, 0, 15, 4);
  ASSERT_TRUE(stream->Write(request));
  request.mutable_chunk()->mutable_data()->assign(kMaxMessageBytes + 1, 'x');
  stream->Write(request);
  v1::StageReply reply;
  while (stream->Read(&reply)) {
  }
  EXPECT_EQ(RefusalOf(FromGrpc(stream->Finish())), v1::REFUSAL_OVERSIZED);
  EXPECT_EQ(server_->counters().Get("refused_oversized"), 1u);
}

// tests/base/rpc/bounded_parse_test.cc shows that no memory is taken.
TEST_F(ServiceTest, HostileRequestsAreRefusedBeforeTheyAreParsed) {
  Open();
  const auto stub = server_->Stub();
  v1::PullRequest pull = PullOf(run_, 0, 0, 15);
  v1::StageRequest stage;
  for (int i = 0; i < 1 << 20; ++i) {
    pull.add_ranges();
    stage.mutable_header()->add_ranges();
  }
  grpc::ClientContext pull_context;
  const auto pulled = stub->Pull(&pull_context, pull);
  v1::PullReply pull_reply;
  EXPECT_FALSE(pulled->Read(&pull_reply));
  EXPECT_EQ(RefusalOf(FromGrpc(pulled->Finish())), v1::REFUSAL_OVERSIZED);
  grpc::ClientContext stage_context;
  const auto staged = stub->Stage(&stage_context);
  staged->Write(stage);
  v1::StageReply stage_reply;
  EXPECT_FALSE(staged->Read(&stage_reply));
  EXPECT_EQ(RefusalOf(FromGrpc(staged->Finish())), v1::REFUSAL_OVERSIZED);
}

TEST_F(ServiceTest, OutOfOrderMessagesAreMalformed) {
  Open();
  RawStage chunk_first(*server_);
  ASSERT_TRUE(chunk_first.Send(MakeChunk(0, Values(1, 4))));
  EXPECT_EQ(RefusalOf(chunk_first.Finish()), v1::REFUSAL_MALFORMED);
  RawStage header_twice(*server_);
  ASSERT_TRUE(header_twice.Send(Header(run_, {}, 0, 15, 4)));
  header_twice.Resume();
  ASSERT_TRUE(header_twice.Send(Header(run_, {}, 0, 15, 4)));
  EXPECT_EQ(RefusalOf(header_twice.Finish()), v1::REFUSAL_MALFORMED);
  RawStage nothing(*server_);
  EXPECT_EQ(RefusalOf(nothing.Finish()), v1::REFUSAL_MALFORMED);
  RawStage half(*server_);
  ASSERT_TRUE(half.Send(Header(run_, {}, 0, 15, 4)));
  half.Resume();
  EXPECT_THAT(std::string(half.Finish().message()), HasSubstr("ended after 0 chunks of 4"));
}

TEST_F(ServiceTest, ConcurrentGroupsGiveEqualBits) {
  run_.groups = 6;
  run_.in = 500;
  run_.out = 101;
  const uint64_t n = run_.parameters();
  std::vector<Part> parts;
  for (uint32_t g = 0; g < run_.groups; ++g) parts.push_back({.group = g, .samples = 10 + g});
  uint64_t digest = 0;
  for (int turn = 0; turn < 2; ++turn) {
    run_.run = absl::StrCat("run-", turn);
    Open();
    std::vector<std::thread> groups;
    for (uint32_t i = 0; i < run_.groups; ++i) {
      const uint32_t g = turn == 0 ? i : run_.groups - 1 - i;
      groups.emplace_back([this, g, n, turn] {
        const std::vector<float> values = Values(30 + g, n);
        EXPECT_TRUE(Stage({.group = g, .samples = 10 + g}, values, 4096 + 100 * turn + g).ok());
      });
    }
    for (std::thread& group : groups) group.join();
    const v1::Applied applied = Apply(MakeApply(run_, 1, parts));
    ASSERT_EQ(applied.error(), "");
    if (turn == 0) digest = applied.digest();
    EXPECT_EQ(applied.digest(), digest);
  }
}

TEST_F(ServiceTest, PullsDuringCommitsAreConsistent) {
  run_.in = 999;
  run_.out = 100;
  Open();
  const uint64_t n = run_.parameters();
  constexpr uint32_t kRounds = 12;
  std::atomic<uint32_t> current = 0;
  std::atomic<int> whole = 0;
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      std::vector<float> out(n);
      Traffic traffic;
      while (current < kRounds) {
        const uint32_t version = current;
        const absl::Status status =
            server_->Client()->Pull(PullOf(run_, version, 0, n), out, &traffic);
        if (absl::IsFailedPrecondition(status)) continue;
        ASSERT_TRUE(status.ok()) << status;
        if (version > 0) {
          ASSERT_TRUE(SameBits(out, Values(version, n))) << version;
        }
        ++whole;
      }
    });
  }
  for (uint32_t round = 1; round <= kRounds; ++round) {
    ASSERT_TRUE(Stage({.round = round}, Values(round, n), 5000).ok());
    ASSERT_EQ(Apply(MakeApply(run_, round, {{}})).error(), "");
    current = round;
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace cadre::testing
