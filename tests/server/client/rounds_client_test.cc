// Tests of the client with shards that end calls early, send damaged bytes or wrong sizes.
#include "server/client/rounds_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/crc32c.h"
#include "base/protocol.h"
#include "base/rpc/daemon.h"
#include "tests/base/expect.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

const TransferOptions kQuick = {.first_wait = absl::Milliseconds(1),
                                .max_wait = absl::Milliseconds(5)};

// A shard that answers each call by running a function of the test.
class ScriptedShard final : public v1::Rounds::Service {
 public:
  using StageStream = grpc::ServerReaderWriter<v1::StageReply, v1::StageRequest>;
  using PullStream = grpc::ServerWriter<v1::PullReply>;
  using StageScript = std::function<grpc::Status(int call, grpc::ServerContext*, StageStream*)>;
  using PullScript = std::function<grpc::Status(int call, const v1::PullRequest&, PullStream*)>;

  void OnStage(StageScript script) {
    absl::MutexLock lock(&mutex_);
    stage_ = std::move(script);
  }
  void OnPull(PullScript script) {
    absl::MutexLock lock(&mutex_);
    pull_ = std::move(script);
  }
  // Number of calls so far. Results of their scripts may be read after this.
  int calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

 private:
  grpc::Status Stage(grpc::ServerContext* context, StageStream* stream) override {
    StageScript script;
    const int call = Begin(stage_, &script);
    const grpc::Status status = script(call, context, stream);
    absl::MutexLock done(&mutex_);
    return status;
  }
  grpc::Status Pull(grpc::ServerContext*, const v1::PullRequest* request,
                    PullStream* stream) override {
    PullScript script;
    const int call = Begin(pull_, &script);
    const grpc::Status status = script(call, *request, stream);
    absl::MutexLock done(&mutex_);
    return status;
  }
  template <typename Script>
  int Begin(const Script& from, Script* script) {
    absl::MutexLock lock(&mutex_);
    *script = from;
    return calls_++;
  }

  mutable absl::Mutex mutex_;
  // Guarded by mutex_.
  StageScript stage_;
  PullScript pull_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The bytes of elements [begin, end) of a model whose element i has the value i.
std::string Bytes(uint64_t begin, uint64_t end) {
  std::vector<float> values;
  for (uint64_t i = begin; i < end; ++i) values.push_back(i);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

void Write(ScriptedShard::PullStream* stream, const std::string& data, uint32_t crc) {
  v1::PullReply reply;
  reply.mutable_chunk()->set_data(data);
  reply.mutable_chunk()->set_crc32c(crc);
  stream->Write(reply);
}

void Write(ScriptedShard::PullStream* stream, uint64_t begin, uint64_t end) {
  const std::string data = Bytes(begin, end);
  Write(stream, data, Crc32c(data));
}

grpc::Status Broken() { return {grpc::StatusCode::UNAVAILABLE, "the connection is broken"}; }

class RoundsClientTest : public ::testing::Test {
 protected:
  RoundsClientTest() : client_([this] { return daemon_->address(); }, kQuick) {
    auto daemon = Daemon::Start({}, {&shard_});
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    request_ = Parse<v1::PullRequest>("ranges { end: 6 } ranges { tensor: 1 begin: 6 end: 10 }");
    *header_.mutable_ranges() = request_.ranges();
    header_.set_chunk_elements(4);
  }

  absl::Status Pull() { return client_.Pull(request_, out_, &traffic_); }
  absl::Status Stage() { return client_.Stage(header_, values_, &traffic_); }

  ScriptedShard shard_;
  std::unique_ptr<Daemon> daemon_;
  RoundsClient client_;
  v1::PullRequest request_;
  v1::ContributionHeader header_;
  const std::vector<float> values_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<float> out_ = std::vector<float>(10);
  Traffic traffic_;
};

TEST_F(RoundsClientTest, PullResumesAfterBreak) {
  std::vector<v1::PullRequest> requests;
  shard_.OnPull([&](int call, const v1::PullRequest& request, auto* stream) {
    requests.push_back(request);
    if (call == 0) {
      Write(stream, 0, 4);
      return Broken();
    }
    if (call == 1) {
      Write(stream, 4, 8);
      return Broken();
    }
    Write(stream, 8, 10);
    return grpc::Status::OK;
  });
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(out_, values_);
  ASSERT_EQ(shard_.calls(), 3);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].protocol(), kProtocol);
  EXPECT_GT(requests[0].chunk_elements(), 0u);
  ASSERT_EQ(requests[1].ranges_size(), 2);
  EXPECT_EQ(requests[1].ranges(0).begin(), 4u);
  ASSERT_EQ(requests[2].ranges_size(), 1);
  EXPECT_EQ(requests[2].ranges(0).tensor(), 1u);
  EXPECT_EQ(requests[2].ranges(0).begin(), 8u);
  EXPECT_EQ(traffic_.payload_received, 40u);
}

TEST_F(RoundsClientTest, DamagedChunkIsRequestedAgain) {
  shard_.OnPull([&](int call, const v1::PullRequest& request, auto* stream) {
    const uint64_t begin = request.ranges(0).begin();
    if (call == 0) Write(stream, 0, 2);
    Write(stream, Bytes(call == 0 ? 2 : begin, 10), call < 2 ? 1 : Crc32c(Bytes(begin, 10)));
    return grpc::Status::OK;
  });
  ASSERT_TRUE(Pull().ok());
  EXPECT_EQ(out_, values_);
  EXPECT_EQ(shard_.calls(), 3);
}

TEST_F(RoundsClientTest, RepeatedDamageIsDataLoss) {
  shard_.OnPull([&](int, const v1::PullRequest&, auto* stream) {
    Write(stream, Bytes(0, 10), 1);
    return grpc::Status::OK;
  });
  EXPECT_EQ(Pull().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(shard_.calls(), 3);
}

TEST_F(RoundsClientTest, WrongSizesAreErrors) {
  shard_.OnPull([&](int, const v1::PullRequest&, auto* stream) {
    Write(stream, 0, 11);
    return grpc::Status::OK;
  });
  EXPECT_EQ(Pull().code(), absl::StatusCode::kInternal);
  shard_.OnPull([&](int, const v1::PullRequest&, auto*) { return grpc::Status::OK; });
  EXPECT_EQ(Pull().code(), absl::StatusCode::kInternal);
  shard_.OnPull([&](int, const v1::PullRequest&, auto* stream) {
    Write(stream, "abc", Crc32c("abc"));
    return grpc::Status::OK;
  });
  EXPECT_EQ(Pull().code(), absl::StatusCode::kInternal);
}

TEST_F(RoundsClientTest, RefusalIsFinal) {
  shard_.OnPull([&](int, const v1::PullRequest&, auto*) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "wrong_lineage: other");
  });
  EXPECT_EQ(Pull().message(), "wrong_lineage: other");
  EXPECT_EQ(shard_.calls(), 1);
}

TEST_F(RoundsClientTest, StagingResumesAtChunk) {
  std::vector<uint32_t> indices;
  v1::ContributionHeader seen;
  shard_.OnStage([&](int call, grpc::ServerContext*, auto* stream) {
    v1::StageRequest request;
    v1::StageReply reply;
    EXPECT_TRUE(stream->Read(&request));
    seen = request.header();
    reply.mutable_resume()->set_next_chunk(call);
    stream->Write(reply);
    while (stream->Read(&request)) {
      EXPECT_EQ(Crc32c(request.chunk().data()), request.chunk().crc32c());
      indices.push_back(request.chunk().index());
      if (call < 2) return Broken();
    }
    reply.mutable_staged()->set_elements(10);
    stream->Write(reply);
    return grpc::Status::OK;
  });
  ASSERT_TRUE(Stage().ok());
  EXPECT_EQ(shard_.calls(), 3);
  EXPECT_THAT(indices, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(seen.protocol(), kProtocol);
  EXPECT_EQ(seen.codec(), v1::CODEC_FP32);
}

TEST_F(RoundsClientTest, WrongStagedSizeIsAnError) {
  shard_.OnStage([&](int, grpc::ServerContext*, auto* stream) {
    v1::StageRequest request;
    v1::StageReply reply;
    stream->Read(&request);
    reply.mutable_resume()->set_next_chunk(3);
    stream->Write(reply);
    while (stream->Read(&request)) {
    }
    reply.mutable_staged()->set_elements(9);
    stream->Write(reply);
    return grpc::Status::OK;
  });
  EXPECT_EQ(Stage().code(), absl::StatusCode::kInternal);
}

TEST_F(RoundsClientTest, MissingStagedIsAnError) {
  shard_.OnStage([&](int, grpc::ServerContext*, auto*) { return grpc::Status::OK; });
  EXPECT_EQ(Stage().code(), absl::StatusCode::kInternal);
}

TEST_F(RoundsClientTest, CancelEndsWaitingCall) {
  absl::Notification arrived;
  shard_.OnStage([&](int, grpc::ServerContext* context, auto* stream) {
    v1::StageRequest request;
    stream->Read(&request);
    arrived.Notify();
    // Sends nothing until the caller has cancelled.
    while (stream->Read(&request)) {
    }
    EXPECT_TRUE(context->IsCancelled());
    return grpc::Status::CANCELLED;
  });
  absl::Status staged;
  std::thread call([&] { staged = Stage(); });
  arrived.WaitForNotification();
  client_.Cancel();
  call.join();
  EXPECT_EQ(staged.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Stage().code(), absl::StatusCode::kCancelled) << "later calls";
  EXPECT_EQ(shard_.calls(), 1);
}

TEST_F(RoundsClientTest, CancelEndsWaitForAddress) {
  RoundsClient unknown([] { return std::string(); });
  absl::Status pulled;
  std::thread call([&] { pulled = unknown.Pull(request_, out_, &traffic_); });
  unknown.Cancel();
  call.join();
  EXPECT_EQ(pulled.code(), absl::StatusCode::kCancelled);
}

TEST_F(RoundsClientTest, SizeMismatchIsInvalid) {
  request_.mutable_ranges(1)->set_end(9);
  EXPECT_EQ(Pull().message(), "the ranges have 9 elements, but there are 10 values");
  request_.mutable_ranges(1)->set_end(5);
  EXPECT_EQ(Pull().message(), "a range ends before it begins");
  *header_.mutable_ranges() = request_.ranges();
  EXPECT_EQ(Stage().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(shard_.calls(), 0);
}

TEST_F(RoundsClientTest, SilentShardEndsCall) {
  shard_.OnStage([&](int, grpc::ServerContext*, auto* stream) {
    v1::StageRequest request;
    while (stream->Read(&request)) {
    }
    return grpc::Status::CANCELLED;
  });
  RoundsClient client([this] { return daemon_->address(); }, {.silence = absl::Milliseconds(200)});
  const absl::Status status = client.Stage(header_, values_, &traffic_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

// It is not silent, but never serves this rank.
TEST_F(RoundsClientTest, BusyShardIsNamed) {
  shard_.OnStage([&](int, grpc::ServerContext*, auto*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy: too many concurrent streams");
  });
  RoundsClient client([this] { return ShardLocation(daemon_->address(), "agg-0"); },
                      {.first_wait = absl::Milliseconds(5),
                       .silence = absl::Milliseconds(500),
                       .max_busy = absl::Seconds(1)});
  EXPECT_THAT(client.Stage(header_, values_, &traffic_),
              IsError(absl::StatusCode::kDeadlineExceeded,
                      absl::StrCat("aggregator agg-0 at ", daemon_->address(),
                                   ": the aggregator shard has only served others for 1s; last: "
                                   "busy: too many concurrent streams")));
}

TEST_F(RoundsClientTest, StopEndsOneCall) {
  std::stop_source stop;
  shard_.OnPull([&](int call, const v1::PullRequest&, auto* stream) {
    if (call == 0) stop.request_stop();
    if (call == 0) return Broken();
    Write(stream, 0, 10);
    return grpc::Status::OK;
  });
  EXPECT_EQ(client_.Pull(request_, out_, &traffic_, stop.get_token()).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client_.Stage(header_, values_, &traffic_, stop.get_token()).code(),
            absl::StatusCode::kCancelled)
      << "stopped before it began";
  EXPECT_EQ(shard_.calls(), 1);
  EXPECT_TRUE(Pull().ok()) << "a later call without the token";
}

TEST_F(RoundsClientTest, TrafficAddsUp) {
  Traffic sum = {1, 2, 3, 4};
  sum += {10, 20, 30, 40};
  EXPECT_EQ(sum.payload_sent, 11u);
  EXPECT_EQ(sum.payload_received, 22u);
  EXPECT_EQ(sum.message_sent, 33u);
  EXPECT_EQ(sum.message_received, 44u);
}

}  // namespace
}  // namespace cadre
