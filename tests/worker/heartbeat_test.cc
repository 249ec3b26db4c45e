// Heartbeats show what the training thread does, also while it is blocked.
#include "gtest/gtest.h"
#include "tests/base/expect.h"
#include "tests/server/fake_coordinator.h"
#include "worker/worker.h"

namespace cadre {
namespace {

class HeartbeatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = "w";
    options.make_compute = [] { return MakeCompute({}); };
    auto worker = StartWorker(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    ASSERT_TRUE(coordinator_.WaitForJoin());
  }

  // Assigns a rank whose peer does not exist, so that the training thread waits for it.
  void AssignWithoutPeer() {
    v1::CoordinatorMessage message;
    v1::Assignment& assignment = *message.mutable_assignment();
    assignment.mutable_place()->set_run("run-1");
    assignment.mutable_place()->set_generation(3);
    assignment.set_key(std::string(16, 'k'));
    assignment.mutable_place()->set_rank(1);
    *assignment.mutable_spec() = Parse<v1::RunSpec>(
        "data { synthetic { train_samples: 64 test_samples: 20 classes: 3 } }"
        "model { input { channels: 1 height: 4 width: 4 }"
        "  layer { name: 'fc' fully_connected { out_features: 3 } }"
        "  layer { name: 'loss' softmax_cross_entropy {} } }");
    assignment.add_peers("127.0.0.1:1");
    assignment.add_peers("127.0.0.1:2");
    coordinator_.Send(message);
  }

  v1::Heartbeat Next() { return coordinator_.Receive(v1::MemberMessage::kHeartbeat).heartbeat(); }

  testing::FakeCoordinator coordinator_;
  std::unique_ptr<GroupMember> worker_;
};

TEST_F(HeartbeatTest, IdleWorkerHasNoPlace) { EXPECT_FALSE(Next().has_place()); }

TEST_F(HeartbeatTest, BlockedTrainingThreadMakesNoProgress) {
  AssignWithoutPeer();
  // The data is opened first; then the thread waits.
  v1::Heartbeat heartbeat;
  int repeated = 0;
  for (int i = 0; i < 400 && repeated < 20; ++i) {
    const uint64_t before = heartbeat.progress();
    heartbeat = Next();
    repeated = heartbeat.has_place() && heartbeat.progress() == before ? repeated + 1 : 0;
  }
  EXPECT_EQ(repeated, 20) << "heartbeats in succession without progress";
  EXPECT_EQ(heartbeat.place().generation(), 3U);
  EXPECT_EQ(heartbeat.activity(), v1::ACTIVITY_PREPARING);
  EXPECT_GT(heartbeat.progress(), 0U);

  v1::CoordinatorMessage release;
  *release.mutable_release()->mutable_place() = heartbeat.place();
  coordinator_.Send(release);
  for (int i = 0; i < 400 && heartbeat.has_place(); ++i) heartbeat = Next();
  EXPECT_FALSE(heartbeat.has_place());
}

}  // namespace
}  // namespace cadre
