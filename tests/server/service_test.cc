// The Rounds service and its client over connections on loopback.
#include "base/protocol.h"
#include "server/service.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/rpc/grpc_channel.h"
#include "base/rpc/grpc_status.h"
#include "server/client/refusal.h"
#include "server/client/version_reader.h"
#include "tests/base/expect.h"
#include "tests/base/file_size_limit.h"
#include "tests/base/rpc/slow_relay.h"
#include "tests/server/rounds_server.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers delay the release of memory, so the limit is higher with them. It still detects a copy
// of the model (64 MiB) per stream.
constexpr uint64_t kMemoryFactor = 16;
#else
constexpr uint64_t kMemoryFactor = 1;
#endif

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// A Stage stream that the test controls message by message.
struct RawStage {
  explicit RawStage(const RoundsServer& server) : stub(server.Stub()) {
    context.set_deadline(absl::ToChronoTime(Soon()));
    stream = stub->Stage(&context);
  }
  bool Send(const v1::ContributionHeader& header) {
    v1::StageRequest request;
    *request.mutable_header() = header;
    return stream->Write(request);
  }
  bool Send(const v1::Chunk& chunk) {
    v1::StageRequest request;
    *request.mutable_chunk() = chunk;
    return stream->Write(request);
  }
  // The server's Resume; fails the test if there is none.
  uint32_t Resume() {
    v1::StageReply reply;
    EXPECT_TRUE(stream->Read(&reply) && reply.has_resume());
    return reply.resume().next_chunk();
  }
  // Half-closes the stream; returns its final status.
  absl::Status Finish() {
    stream->WritesDone();
    v1::StageReply reply;
    while (stream->Read(&reply)) {
    }
    return FromGrpc(stream->Finish());
  }

  std::unique_ptr<v1::Rounds::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StageRequest, v1::StageReply>> stream;
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() { Start({}); }

  void Start(RoundsServiceOptions options) {
    server_.reset();
    server_ = std::make_unique<RoundsServer>(folder_.path(), options);
  }

  void Open() {
    const auto opened = server_->host().OpenRun(run_.Open());
    ASSERT_TRUE(opened.ok()) << opened.status();
  }

  absl::Status Stage(const Place& place, const std::vector<float>& values, uint32_t chunk = 4,
                     Traffic* traffic = nullptr) {
    Traffic unused;
    return server_->Client()->Stage(Header(run_, place, 0, values.size(), chunk), values,
                                    traffic == nullptr ? &unused : traffic);
  }

  v1::Applied Apply(const v1::Apply& apply) {
    const auto applied = server_->host().Apply(apply);
    EXPECT_TRUE(applied.ok()) << applied.status();
    return *applied;
  }

  // A run of 16 Mi parameters (64 MiB).
  void OpenLarge() {
    run_.in = 4095;
    run_.out = 4096;
    Open();
  }

  TemporaryFolder folder_;
  SmallRun run_;
  std::unique_ptr<RoundsServer> server_;
};

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

// --- Refusals

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

TEST(StreamSlotsTest, OnePeerLeavesAQuarter) {
  StreamSlots slots(8);
  std::vector<StreamSlots::Slot> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(slots.Take("a"));
  EXPECT_TRUE(taken.back().taken());
  EXPECT_FALSE(slots.Take("a").taken());
  for (const char* peer : {"b", "c"}) taken.push_back(slots.Take(peer));
  EXPECT_TRUE(taken.back().taken());
  EXPECT_FALSE(slots.Take("d").taken());
  taken.clear();
  EXPECT_TRUE(slots.Take("a").taken());
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
