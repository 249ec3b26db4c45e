// Failures of one shard. tests/equivalence and tests/cluster exchange values with real aggregators.
#include "member/shard_exchange.h"
#include "member/thread_runtime.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/rpc/daemon.h"
#include "proto/cadre/v1/rounds.grpc.pb.h"
#include "server/client/refusal.h"
#include "tests/base/expect.h"
#include "tests/member/recording_control.h"

namespace cadre {
namespace {

class ClosedRound final : public v1::Rounds::Service {
  grpc::Status Stage(grpc::ServerContext*,
                     grpc::ServerReaderWriter<v1::StageReply, v1::StageRequest>*) override {
    return {grpc::StatusCode::FAILED_PRECONDITION, "closed_round: closed"};
  }
};

// The address of shard 1 is never known.
class FirstShard final : public RecordingControl {
 public:
  explicit FirstShard(std::string address) : address_(std::move(address)) {}
  ShardLocation LocationOf(uint32_t shard) const override { return shard == 0 ? address_ : ""; }

 private:
  const std::string address_;
};

TEST(ShardExchange, RefusalEndsTheCallsToOtherShards) {
  ClosedRound service;
  auto daemon = Daemon::Start({}, {&service});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  FirstShard control((*daemon)->address());
  v1::Assignment assignment;
  assignment.add_shards();
  assignment.add_shards();
  const auto index = ParameterIndex::FromModel(Parse<v1::Model>(R"(
    input { channels: 1 height: 4 width: 4 }
    layer { name: "fc" fully_connected { out_features: 3 } }
    layer { name: "loss" softmax_cross_entropy {} }
  )"));
  ASSERT_TRUE(index.ok()) << index.status();
  Cancellation cancellation;
  TrainerProgress progress;
  std::vector<float> values(index->size());
  const std::vector<Owned> owned = {{{0, index->size()}, values}};
  ShardExchange exchange(ThreadRuntime::Insecure(), assignment, *index, owned, control,
                         cancellation, progress, {});
  const absl::Time start = absl::Now();
  // The second exchange shows that only calls in progress were cancelled.
  for (uint32_t round = 1; round <= 2; ++round) {
    Traffic traffic;
    exchange.BeginStage(round, /*samples=*/1);
    const absl::Status staged = exchange.Finish(&traffic);
    EXPECT_EQ(RefusalOf(staged), v1::REFUSAL_CLOSED_ROUND) << staged;
  }
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
}

}  // namespace
}  // namespace cadre
