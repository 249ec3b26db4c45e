// The life of NCCL communicators, whatever NCCL says and when: made within a deadline, brought to
// an end together with host and device by the first error, finalized otherwise.
#include "worker/transport/nccl/nccl_communicators.h"

#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/emulator/emulated_cuda.h"
#include "worker/transport/thread_transport.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// NCCL as a test wants it. One at a time, for a table of functions knows no object.
class ScriptedNccl {
 public:
  ScriptedNccl() {
    now = this;
    api.init = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
      EXPECT_EQ(config->blocking, 0);
      return now->Make(comm);
    };
    api.split = [](ncclComm_t, int, int, ncclComm_t* made, ncclConfig_t*) {
      return now->Split(made);
    };
    api.finalize = [](ncclComm_t comm) {
      return now->Note("finalize", comm, now->state_after_finalize);
    };
    api.destroy = [](ncclComm_t comm) { return now->Note("destroy", comm, ncclSuccess); };
    api.abort = [](ncclComm_t comm) { return now->Abort(comm); };
    api.async_error = [](ncclComm_t comm, ncclResult_t* error) { return now->State(comm, error); };
    api.error_text = [](ncclResult_t) { return "what NCCL calls it"; };
    api.last_error = [](ncclComm_t) { return "its last words\n"; };
    api.group_start = [] { return now->Note("start", nullptr, ncclSuccess); };
    api.group_end = [] { return now->Note("end", nullptr, now->state_after_end); };
    api.register_memory = [](ncclComm_t comm, void* memory, size_t, void** handle) {
      *handle = memory;
      return now->Note("register", comm, ncclSuccess);
    };
    api.deregister_memory = [](ncclComm_t comm, void*) {
      return now->Note("deregister", comm, ncclSuccess);
    };
  }
  ~ScriptedNccl() {
    EndAborts();
    now = nullptr;
  }

  // From now on aborts do not return, until they are told to; that waits for them.
  void HangAborts() {
    absl::MutexLock lock(&mutex_);
    hang_ = true;
  }
  void EndAborts() {
    absl::MutexLock lock(&mutex_);
    hang_ = false;
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return aborting_ == 0; };
    mutex_.Await(absl::Condition(&none));
  }

  // What is under way comes to this after so many looks.
  void Settle(ncclResult_t state, int looks) {
    absl::MutexLock lock(&mutex_);
    state_ = state;
    looks_ = looks;
  }
  int Count(const std::string& call) const {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(call);
    return found == calls_.end() ? 0 : found->second;
  }
  int made() const {
    absl::MutexLock lock(&mutex_);
    return made_;
  }
  // Communicators that were neither destroyed nor aborted, or twice.
  bool all_gone() const {
    absl::MutexLock lock(&mutex_);
    return gone_.size() == static_cast<size_t>(made_) && twice_ == 0;
  }

  NcclApi api;
  ncclResult_t result_of_init = ncclInProgress;
  // Splits are made in the background, and there when what they were split from is aborted.
  bool slow_splits = false;
  ncclResult_t state_after_end = ncclInProgress;
  ncclResult_t state_after_finalize = ncclInProgress;

 private:
  static ScriptedNccl* now;

  ncclResult_t Make(ncclComm_t* comm) {
    absl::MutexLock lock(&mutex_);
    *comm = reinterpret_cast<ncclComm_t>(static_cast<uintptr_t>(++made_));
    return result_of_init;
  }
  ncclResult_t Split(ncclComm_t* made) {
    if (!slow_splits) return Make(made);
    absl::MutexLock lock(&mutex_);
    late_ = made;
    return ncclInProgress;
  }
  ncclResult_t Abort(ncclComm_t comm) {
    ncclComm_t* late = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      late = std::exchange(late_, nullptr);
      ++aborting_;
    }
    if (late != nullptr) Make(late);
    const ncclResult_t result = Note("abort", comm, ncclSuccess);
    absl::MutexLock lock(&mutex_);
    const auto on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !hang_; };
    mutex_.Await(absl::Condition(&on));
    --aborting_;
    return result;
  }
  ncclResult_t Note(const std::string& call, ncclComm_t comm, ncclResult_t result) {
    absl::MutexLock lock(&mutex_);
    ++calls_[call];
    if (call == "destroy" || call == "abort") twice_ += gone_.insert(comm).second ? 0 : 1;
    EXPECT_TRUE(call == "destroy" || call == "abort" || gone_.count(comm) == 0) << call;
    return result;
  }
  ncclResult_t State(ncclComm_t comm, ncclResult_t* error) {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(gone_.count(comm), 0U) << "used after its end";
    *error = looks_-- > 0 ? ncclInProgress : state_;
    return ncclSuccess;
  }

  mutable absl::Mutex mutex_;
  ncclResult_t state_ = ncclSuccess;
  int looks_ = 3;
  bool hang_ = false;
  int aborting_ = 0;
  ncclComm_t* late_ = nullptr;
  int made_ = 0;
  int twice_ = 0;
  std::map<std::string, int> calls_;
  std::set<ncclComm_t> gone_;
};

ScriptedNccl* ScriptedNccl::now = nullptr;

constexpr int kForEver = 1 << 30;

class NcclCommunicatorsTest : public ::testing::Test {
 protected:
  NcclCommunicatorsTest() : hosts_(MakeThreadTransports(2, absl::Seconds(30))) {
    auto device = CudaDevice::Make(cuda_.api(), {.memory_limit = 1 << 20});
    CHECK(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  void Begin(absl::Duration timeout = absl::Seconds(30),
             absl::Duration aborting = absl::Seconds(30)) {
    comms_ =
        std::make_unique<NcclCommunicators>(nccl_.api, *device_, *hosts_[0], timeout, aborting);
  }
  absl::Status Exchange() {
    return comms_->Enqueue(0, tag_, [](ncclComm_t) { return ncclSuccess; });
  }
  // Waits, as long as it takes on a busy machine, until the watcher has done its part.
  void AwaitAborts(int aborts) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (nccl_.Count("abort") < aborts && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(nccl_.Count("abort"), aborts);
  }
  // The other rank's host transport.
  absl::Status AwaitPeer() {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (hosts_[1]->Poll().ok() && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    return hosts_[1]->status();
  }

  ScriptedNccl nccl_;
  EmulatedCuda cuda_{EmulatedCuda::Mode::kInline};
  std::unique_ptr<CudaDevice> device_;
  std::vector<std::unique_ptr<Transport>> hosts_;
  std::unique_ptr<NcclCommunicators> comms_;
  const CallTag tag_ = {.collective = Collective::kAllReduce, .algorithm = Algorithm::kRing};
};

TEST_F(NcclCommunicatorsTest, Lifecycle) {
  Begin();
  const auto moves = comms_->Make({}, "moves");
  ASSERT_TRUE(moves.ok()) << moves.status();
  const auto part = comms_->Split(*moves, 0, 0, "part");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(nccl_.made(), 2);
  EXPECT_EQ(comms_->status(), absl::OkStatus());
  nccl_.Settle(ncclSuccess, 5);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("finalize"), 2);
  EXPECT_EQ(nccl_.Count("destroy"), 2);
  EXPECT_EQ(nccl_.Count("abort"), 0);
  EXPECT_EQ(hosts_[1]->status(), absl::OkStatus()) << "nothing has gone wrong";
}

TEST_F(NcclCommunicatorsTest, InitTimesOut) {
  nccl_.Settle(ncclSuccess, kForEver);
  Begin(absl::Milliseconds(50));
  const absl::Status status = comms_->Make({}, "moves").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("connecting 2 ranks for moves"), HasSubstr("rank 0"),
                               HasSubstr("50ms")));
  EXPECT_EQ(comms_->status(), status);
  EXPECT_EQ(device_->status(), status);
  EXPECT_EQ(AwaitPeer().code(), absl::StatusCode::kUnavailable);
  AwaitAborts(1);
  comms_.reset();
  EXPECT_TRUE(nccl_.all_gone());
}

TEST_F(NcclCommunicatorsTest, InvalidUsageIsNotRetryable) {
  nccl_.result_of_init = ncclInvalidUsage;
  Begin();
  const absl::Status status = comms_->Make({}, "moves").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("what NCCL calls it"), HasSubstr("(its last words)")));
}

TEST_F(NcclCommunicatorsTest, AsyncInvalidUsageIsNotRetryable) {
  nccl_.Settle(ncclInvalidUsage, 10);
  Begin();
  EXPECT_EQ(comms_->Make({}, "moves").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclCommunicatorsTest, GroupCompletesBeforeNextCall) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  for (int i = 0; i < 3; ++i) {
    nccl_.Settle(ncclSuccess, 20);
    ASSERT_EQ(Exchange(), absl::OkStatus());
  }
  EXPECT_EQ(nccl_.Count("start"), 3);
  EXPECT_EQ(nccl_.Count("end"), 3);
  // A call in a group that NCCL does not take: the group is closed all the same.
  const absl::Status status =
      comms_->Enqueue(0, tag_, [](ncclComm_t) { return ncclInvalidArgument; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce by ring"));
  EXPECT_EQ(nccl_.Count("end"), 4);
  EXPECT_EQ(Exchange(), status) << "the first error is the last word";
  EXPECT_EQ(nccl_.Count("start"), 4);
}

TEST_F(NcclCommunicatorsTest, LostMemberFailsAll) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  ASSERT_TRUE(comms_->Make({}, "background").ok());
  ASSERT_EQ(Exchange(), absl::OkStatus());
  nccl_.Settle(ncclRemoteError, 0);
  AwaitAborts(2);
  const absl::Status status = comms_->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("rank 0"), HasSubstr("all-reduce by ring"),
                               HasSubstr("its last words")));
  EXPECT_EQ(device_->status(), status) << "whoever waits for the device is told";
  EXPECT_EQ(Exchange(), status);
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("its last words"));
  comms_.reset();
  EXPECT_TRUE(nccl_.all_gone());
  EXPECT_EQ(nccl_.Count("finalize"), 0);
}

TEST_F(NcclCommunicatorsTest, HostReportsPeerAbort) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  hosts_[1]->Abort(absl::ResourceExhaustedError("out of memory in layer fc1"));
  AwaitAborts(1);
  EXPECT_EQ(comms_->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(comms_->status().message()),
              ::testing::AllOf(HasSubstr("rank 1"), HasSubstr("out of memory in layer fc1")));
}

TEST_F(NcclCommunicatorsTest, NamesLostPeer) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  hosts_[1]->Abort(absl::UnavailableError("rank 1 dies"));
  nccl_.Settle(ncclRemoteError, 0);
  AwaitAborts(1);
  EXPECT_THAT(std::string(comms_->status().message()), HasSubstr("rank 1"));
}

TEST_F(NcclCommunicatorsTest, DeviceFailureReachesPeers) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  device_->Fail(absl::UnavailableError("Xid 79: fallen off the bus"));
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("fallen off the bus"));
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, ExternalAbortIsFinal) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  const absl::Status reason = absl::CancelledError("the run was stopped");
  comms_->Fail(reason);
  comms_->Fail(absl::InternalError("later"));
  EXPECT_EQ(comms_->status(), reason);
  EXPECT_EQ(Exchange(), reason);
  AwaitAborts(1);
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("the run was stopped"));
}

TEST_F(NcclCommunicatorsTest, ErrorEndsGroupWait) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  nccl_.Settle(ncclSuccess, kForEver);
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(20));
    hosts_[1]->Abort(absl::UnavailableError("rank 1 dies"));
  });
  const absl::Status status = Exchange();
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 dies"));
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, HangingAbortsAreAbandoned) {
  Begin(absl::Seconds(30), absl::Milliseconds(50));
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  ASSERT_TRUE(comms_->Make({}, "background").ok());
  nccl_.HangAborts();
  nccl_.Settle(ncclRemoteError, 0);
  AwaitAborts(2);
  comms_.reset();
  nccl_.EndAborts();
  EXPECT_TRUE(nccl_.all_gone());
}

TEST_F(NcclCommunicatorsTest, LostDeviceIsAbandonedEarly) {
  Begin(absl::Seconds(30), absl::InfiniteDuration());
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  nccl_.HangAborts();
  EXPECT_FALSE(device_->Check(cudaErrorECCUncorrectable, "a test"));
  ASSERT_TRUE(device_->lost());
  AwaitAborts(1);
  comms_.reset();
}

TEST_F(NcclCommunicatorsTest, HangingFinalizeIsAbandoned) {
  Begin(absl::Seconds(30), absl::Milliseconds(50));
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  nccl_.HangAborts();
  nccl_.Settle(ncclSystemError, 20);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("destroy"), 0);
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, AbortsPendingSplit) {
  Begin(absl::Milliseconds(50));
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  nccl_.slow_splits = true;
  nccl_.Settle(ncclSuccess, kForEver);
  EXPECT_EQ(comms_->Split(0, 0, 0, "part").status().code(), absl::StatusCode::kDeadlineExceeded);
  AwaitAborts(2);
  comms_.reset();
  EXPECT_EQ(nccl_.made(), 2);
  EXPECT_TRUE(nccl_.all_gone());
}

TEST_F(NcclCommunicatorsTest, DeregistersBeforeDestroy) {
  Begin();
  ASSERT_TRUE(comms_->Make({}, "moves").ok());
  ASSERT_TRUE(comms_->Make({}, "background").ok());
  int a = 0;
  int b = 0;
  comms_->Register(&a, sizeof a);
  comms_->Register(&b, sizeof b);
  EXPECT_EQ(nccl_.Count("register"), 4);
  comms_->Deregister(&a);
  comms_->Deregister(&a);
  EXPECT_EQ(nccl_.Count("deregister"), 2);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("deregister"), 4);
}

}  // namespace
}  // namespace cadre
