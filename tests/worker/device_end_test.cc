// Failures of a worker's device: what the worker reports to the coordinator, and whether it ends.
// Uses emulated devices and a fake coordinator.
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/search/planner.h"
#include "tests/base/expect.h"
#include "tests/emulator/emulated_compute.h"
#include "tests/server/fake_coordinator.h"
#include "worker/worker.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using testing::FakeCoordinator;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr size_t kMemory = size_t{24} << 20;
// A layer of this width has weights and gradients of 16 MB each, which do not fit into the device's
// memory.
constexpr uint32_t kWide = 200'000;

class DeviceEndTest : public ::testing::Test {
 protected:
  void StartWorker() {
    WorkerOptions options;
    options.coordinator = coordinator_.address();
    options.name = "w";
    options.make_compute = [this] { return Make(); };
    options.ended = [this] { ended_.Notify(); };
    auto worker = cadre::StartWorker(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    hello_ = coordinator_.Receive(v1::MemberMessage::kHello).hello();
    address_ = hello_.address();
    ASSERT_TRUE(coordinator_.WaitForJoin());
  }

  // Assigns a run of one rank that does not end. The first layer has `width` features.
  void Assign(uint32_t generation, uint32_t width = 5, size_t key_bytes = 16) {
    v1::CoordinatorMessage message;
    v1::Assignment& assignment = *message.mutable_assignment();
    assignment.mutable_place()->set_run("run-1");
    assignment.mutable_place()->set_generation(generation);
    assignment.set_key(std::string(key_bytes, 'k'));
    assignment.set_lineage("run-1.a");
    *assignment.mutable_spec() = Parse<v1::RunSpec>(R"(
          name: "lost"
          model {
            input { channels: 1 height: 4 width: 4 }
            layer { name: "wide" fully_connected {} }
            layer { name: "fc" fully_connected { out_features: 3 } }
            layer { name: "loss" softmax_cross_entropy {} }
          }
          data { synthetic { train_samples: 64 test_samples: 20 classes: 3 } }
          batch_per_group: 8
          optimizer { sgd {} }
          schedule { base_rate: 0.001 }
          averaging { every_steps: 1000000 max_solo_steps: 1000000 }
        )");
    assignment.mutable_spec()
        ->mutable_model()
        ->mutable_layer(0)
        ->mutable_fully_connected()
        ->set_out_features(width);
    const auto plan = MakePlan(assignment.spec(), 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    *assignment.mutable_plan() = *plan;
    assignment.add_peers(address_);
    coordinator_.Send(message);
  }

  void StartTraining(uint32_t generation) {
    Assign(generation);
    ASSERT_TRUE(coordinator_.Receive(v1::MemberMessage::kPrepared).has_prepared());
    v1::CoordinatorMessage message;
    v1::Start& start = *message.mutable_start();
    start.mutable_place()->set_run("run-1");
    start.mutable_place()->set_generation(generation);
    start.set_next_step(1'000'000);
    start.set_total_steps(1'000'000);
    start.mutable_division()->set_groups(1);
    coordinator_.Send(message);
    ASSERT_TRUE(coordinator_.Receive(v1::MemberMessage::kProgress).has_progress());
  }

  v1::GroupFailed ReceiveFailure() {
    return coordinator_.Receive(v1::MemberMessage::kGroupFailed).group_failed();
  }

  // The latest device.
  EmulatedRank& rank() {
    absl::MutexLock lock(&mutex_);
    return newest_->rank();
  }
  // Number of devices that were created.
  int created() {
    absl::MutexLock lock(&mutex_);
    return created_;
  }
  // Lets the creation of further devices fail.
  void FailCreation(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    creation_ = std::move(status);
  }

  FakeCoordinator coordinator_;
  FakeNccl nccl_;
  absl::Notification ended_;
  v1::Hello hello_;
  std::unique_ptr<GroupMember> worker_;

 private:
  absl::StatusOr<std::unique_ptr<Compute>> Make() {
    absl::MutexLock lock(&mutex_);
    if (!creation_.ok()) return creation_;
    ++created_;
    auto made = std::make_unique<EmulatedCompute>(nccl_, EmulatedRankOptions{.memory = kMemory});
    newest_ = made.get();
    return made;
  }

  std::string address_;
  absl::Mutex mutex_;
  EmulatedCompute* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int created_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status creation_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(DeviceEndTest, HelloContainsMemoryOfTheDevice) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  EXPECT_EQ(hello_.device(), rank().device->name());
  EXPECT_GT(hello_.memory_bytes(), 0U);
  EXPECT_LE(hello_.memory_bytes(), kMemory) << "the device's, not the host's";
}

TEST_F(DeviceEndTest, LostDeviceEndsGroupAndWorker) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ASSERT_NO_FATAL_FAILURE(StartTraining(1));
  rank().machine->Break(cudaErrorECCUncorrectable);
  const v1::GroupFailed failed = ReceiveFailure();
  EXPECT_NE(failed.cause(), v1::FAILURE_CAUSE_MEMORY);
  EXPECT_THAT(failed.reason(), AllOf(HasSubstr("the GPU is lost"), HasSubstr("Xid")));
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(worker_->end().code(), absl::StatusCode::kUnavailable);
  // A lost device is not replaced in the same process.
  EXPECT_EQ(created(), 1);
  worker_.reset();
  EXPECT_THAT(coordinator_.Receive(v1::MemberMessage::kGoodbye).goodbye().reason(),
              HasSubstr("the GPU is lost"));
}

TEST_F(DeviceEndTest, FailedGroupReplacesTheDevice) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ASSERT_NO_FATAL_FAILURE(StartTraining(1));
  rank().device->Fail(absl::UnavailableError("rank 3 has failed"));
  const v1::GroupFailed failed = ReceiveFailure();
  EXPECT_NE(failed.cause(), v1::FAILURE_CAUSE_MEMORY);
  EXPECT_THAT(failed.reason(), HasSubstr("rank 3 has failed"));
  EXPECT_EQ(created(), 2);
  ASSERT_NO_FATAL_FAILURE(StartTraining(2));
  EXPECT_FALSE(ended_.HasBeenNotified());
  EXPECT_TRUE(worker_->end().ok());
}

TEST_F(DeviceEndTest, AssignmentWithoutKeyFailsTheGroup) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  for (const size_t bytes : {0, 15, 17}) {
    ASSERT_NO_FATAL_FAILURE(Assign(bytes + 1, 5, bytes));
    EXPECT_THAT(ReceiveFailure().reason(), HasSubstr("a key of"));
  }
  ASSERT_NO_FATAL_FAILURE(StartTraining(20));
}

TEST_F(DeviceEndTest, WorkerEndsWithoutNewDevice) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ASSERT_NO_FATAL_FAILURE(StartTraining(1));
  FailCreation(absl::UnavailableError("the GPU does not answer"));
  rank().device->Fail(absl::UnavailableError("rank 3 has failed"));
  EXPECT_THAT(ReceiveFailure().reason(), HasSubstr("rank 3 has failed"));
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(worker_->end().message(),
              AllOf(HasSubstr("rank 3 has failed"), HasSubstr("the GPU does not answer")));
}

// A release aborts the group's transports, and with them the device.
TEST_F(DeviceEndTest, ReleasedWorkerTrainsInTheNextGroup) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  for (uint32_t generation = 1; generation <= 4; ++generation) {
    ASSERT_NO_FATAL_FAILURE(StartTraining(generation));
    v1::CoordinatorMessage message;
    v1::Release& release = *message.mutable_release();
    release.mutable_place()->set_run("run-1");
    release.mutable_place()->set_generation(generation);
    release.set_reason("the run was stopped");
    coordinator_.Send(message);
  }
  ASSERT_NO_FATAL_FAILURE(StartTraining(5));
  EXPECT_FALSE(ended_.HasBeenNotified());
  EXPECT_TRUE(worker_->end().ok());
}

TEST_F(DeviceEndTest, UnsupportedDriverEndsTheWorkerPermanently) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ASSERT_NO_FATAL_FAILURE(StartTraining(1));
  FailCreation(absl::FailedPreconditionError("the driver is too old"));
  rank().device->Fail(absl::UnavailableError("rank 3 has failed"));
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(worker_->end().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(worker_->end().message(), HasSubstr("the driver is too old"));
}

TEST_F(DeviceEndTest, ModelThatDoesNotFitEndsOnlyTheRun) {
  ASSERT_NO_FATAL_FAILURE(StartWorker());
  ASSERT_NO_FATAL_FAILURE(Assign(1, kWide));
  const v1::GroupFailed failed = ReceiveFailure();
  EXPECT_EQ(failed.cause(), v1::FAILURE_CAUSE_MEMORY);
  EXPECT_THAT(failed.reason(), AllOf(HasSubstr("cannot allocate"), HasSubstr("in use")));
  ASSERT_NO_FATAL_FAILURE(StartTraining(2));
  EXPECT_FALSE(ended_.HasBeenNotified());
}

TEST_F(DeviceEndTest, WorkerWithoutDeviceDoesNotJoin) {
  WorkerOptions options;
  options.coordinator = coordinator_.address();
  options.make_compute = [] {
    return absl::StatusOr<std::unique_ptr<Compute>>(
        absl::FailedPreconditionError("no NVIDIA driver"));
  };
  EXPECT_EQ(cadre::StartWorker(options).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cadre
