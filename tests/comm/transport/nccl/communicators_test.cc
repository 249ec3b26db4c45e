// NCCL communicators over a scripted NCCL: their creation within a deadline, their failure together
// with host transport and device, and their destruction.
#include "comm/transport/nccl/nccl_communicators.h"

#include <glog/logging.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "comm/transport/thread_transport.h"
#include "tests/emulator/emulated_cuda.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// An NCCL whose results the test sets. Only one may exist at a time, because the functions of the
// table have no object.
class ScriptedNccl {
 public:
  ScriptedNccl() {
    instance = this;
    api.init = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
      EXPECT_EQ(config->blocking, 0);
      return instance->Make(comm);
    };
    api.split = [](ncclComm_t, int, int, ncclComm_t* made, ncclConfig_t*) {
      return instance->Split(made);
    };
    api.finalize = [](ncclComm_t comm) {
      instance->on_finalize();
      return instance->Record("finalize", comm, instance->state_after_finalize);
    };
    api.destroy = [](ncclComm_t comm) { return instance->Record("destroy", comm, ncclSuccess); };
    api.abort = [](ncclComm_t comm) { return instance->Abort(comm); };
    api.async_error = [](ncclComm_t comm, ncclResult_t* error) {
      return instance->State(comm, error);
    };
    api.error_text = [](ncclResult_t) { return "description of the error"; };
    api.last_error = [](ncclComm_t) { return "details\n"; };
    api.group_start = [] { return instance->Record("start", nullptr, ncclSuccess); };
    api.group_end = [] { return instance->Record("end", nullptr, instance->state_after_end); };
    api.register_memory = [](ncclComm_t comm, void* memory, size_t, void** handle) {
      *handle = memory;
      return instance->Record("register", comm, ncclSuccess);
    };
    api.deregister_memory = [](ncclComm_t comm, void*) {
      return instance->Record("deregister", comm, ncclSuccess);
    };
  }
  ~ScriptedNccl() {
    EndAborts();
    instance = nullptr;
  }

  // Later aborts block until EndAborts, which waits for them.
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

  // async_error returns `state` after `polls` calls that return ncclInProgress.
  void SetState(ncclResult_t state, int polls) {
    absl::MutexLock lock(&mutex_);
    state_ = state;
    polls_ = polls;
  }
  int Count(const std::string& call) const {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(call);
    return found == calls_.end() ? 0 : found->second;
  }
  int created() const {
    absl::MutexLock lock(&mutex_);
    return created_;
  }
  // Whether every communicator was destroyed or aborted exactly once.
  bool all_ended() const {
    absl::MutexLock lock(&mutex_);
    return std::ssize(ended_) == created_ && duplicate_ends_ == 0;
  }

  NcclApi api;
  ncclResult_t result_of_init = ncclInProgress;
  // Splits are created when their parent is aborted.
  bool slow_splits = false;
  ncclResult_t state_after_end = ncclInProgress;
  ncclResult_t state_after_finalize = ncclInProgress;
  // Called by finalize.
  std::function<void()> on_finalize = [] {};

 private:
  static ScriptedNccl* instance;

  ncclResult_t Make(ncclComm_t* comm) {
    absl::MutexLock lock(&mutex_);
    const uintptr_t number = ++created_;
    *comm = reinterpret_cast<ncclComm_t>(number);
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
    const ncclResult_t result = Record("abort", comm, ncclSuccess);
    absl::MutexLock lock(&mutex_);
    const auto may_return = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !hang_; };
    mutex_.Await(absl::Condition(&may_return));
    --aborting_;
    return result;
  }
  ncclResult_t Record(const std::string& call, ncclComm_t comm, ncclResult_t result) {
    absl::MutexLock lock(&mutex_);
    ++calls_[call];
    if (call == "destroy" || call == "abort") duplicate_ends_ += ended_.insert(comm).second ? 0 : 1;
    EXPECT_TRUE(call == "destroy" || call == "abort" || ended_.count(comm) == 0) << call;
    return result;
  }
  ncclResult_t State(ncclComm_t comm, ncclResult_t* error) {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(ended_.count(comm), 0U) << "used after its end";
    *error = polls_-- > 0 ? ncclInProgress : state_;
    return ncclSuccess;
  }

  mutable absl::Mutex mutex_;
  ncclResult_t state_ = ncclSuccess;
  int polls_ = 3;
  bool hang_ = false;
  int aborting_ = 0;
  ncclComm_t* late_ = nullptr;
  int created_ = 0;
  int duplicate_ends_ = 0;
  std::map<std::string, int> calls_;
  std::set<ncclComm_t> ended_;
};

ScriptedNccl* ScriptedNccl::instance = nullptr;

constexpr int kForever = 1 << 30;

// Calls `before` whenever the process logs an error, as CudaDevice::Fail does before it returns.
class ErrorLogHook final : public google::LogSink {
 public:
  explicit ErrorLogHook(std::function<void()> hook) : hook_(std::move(hook)) {
    google::AddLogSink(this);
  }
  ~ErrorLogHook() override { google::RemoveLogSink(this); }

  using google::LogSink::send;
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char*, size_t) override {
    if (severity == google::GLOG_ERROR) hook_();
  }

 private:
  const std::function<void()> hook_;
};

class NcclCommunicatorsTest : public ::testing::Test {
 protected:
  NcclCommunicatorsTest() : hosts_(MakeThreadTransports(2, absl::Seconds(30))) {
    auto device = CudaDevice::Make(cuda_.api(), {.memory_limit = 1 << 20});
    CHECK(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  // Creates the object and communicators of all ranks.
  void Begin(int communicators, absl::Duration timeout = absl::Seconds(30),
             absl::Duration end_timeout = absl::Seconds(30)) {
    comms_ =
        std::make_unique<NcclCommunicators>(nccl_.api, *device_, *hosts_[0], timeout, end_timeout);
    for (int i = 0; i < communicators; ++i) {
      EXPECT_EQ(comms_->Make({}, "moves").status(), absl::OkStatus());
    }
  }
  absl::Status Exchange() {
    return comms_->Enqueue(0, tag_, [](ncclComm_t) { return ncclSuccess; });
  }
  // Waits until the watcher has started so many aborts.
  void AwaitAborts(int aborts) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (nccl_.Count("abort") < aborts && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(nccl_.Count("abort"), aborts);
  }
  // Waits until the host transport of the other rank has failed.
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
  Begin(0);
  const auto moves = comms_->Make({}, "moves");
  ASSERT_TRUE(moves.ok()) << moves.status();
  const auto part = comms_->Split(*moves, 0, 0, "part");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(nccl_.created(), 2);
  EXPECT_EQ(comms_->status(), absl::OkStatus());
  nccl_.SetState(ncclSuccess, 5);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("finalize"), 2);
  EXPECT_EQ(nccl_.Count("destroy"), 2);
  EXPECT_EQ(nccl_.Count("abort"), 0);
  EXPECT_EQ(hosts_[1]->status(), absl::OkStatus()) << "the group has not failed";
}

TEST_F(NcclCommunicatorsTest, InitTimesOut) {
  nccl_.SetState(ncclSuccess, kForever);
  Begin(0, absl::Milliseconds(50));
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
  EXPECT_TRUE(nccl_.all_ended());
}

TEST_F(NcclCommunicatorsTest, InvalidUsageIsNotRetryable) {
  nccl_.result_of_init = ncclInvalidUsage;
  Begin(0);
  const absl::Status status = comms_->Make({}, "moves").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("description of the error"), HasSubstr("(details)")));
}

TEST_F(NcclCommunicatorsTest, AsyncInvalidUsageIsNotRetryable) {
  nccl_.SetState(ncclInvalidUsage, 10);
  Begin(0);
  EXPECT_EQ(comms_->Make({}, "moves").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(NcclCommunicatorsTest, GroupCompletesBeforeNextCall) {
  Begin(1);
  for (int i = 0; i < 3; ++i) {
    nccl_.SetState(ncclSuccess, 20);
    ASSERT_EQ(Exchange(), absl::OkStatus());
  }
  EXPECT_EQ(nccl_.Count("start"), 3);
  EXPECT_EQ(nccl_.Count("end"), 3);
  // The group is closed even if a call in it fails.
  const absl::Status status =
      comms_->Enqueue(0, tag_, [](ncclComm_t) { return ncclInvalidArgument; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all-reduce by ring"));
  EXPECT_EQ(nccl_.Count("end"), 4);
  EXPECT_EQ(Exchange(), status) << "the first error is final";
  EXPECT_EQ(nccl_.Count("start"), 4);
}

TEST_F(NcclCommunicatorsTest, LostMemberFailsAll) {
  Begin(2);
  ASSERT_EQ(Exchange(), absl::OkStatus());
  nccl_.SetState(ncclRemoteError, 0);
  AwaitAborts(2);
  const absl::Status status = comms_->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AllOf(HasSubstr("rank 0"), HasSubstr("all-reduce by ring"), HasSubstr("details")));
  EXPECT_EQ(device_->status(), status) << "waits for the device fail";
  EXPECT_EQ(Exchange(), status);
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("details"));
  comms_.reset();
  EXPECT_TRUE(nccl_.all_ended());
  EXPECT_EQ(nccl_.Count("finalize"), 0);
}

TEST_F(NcclCommunicatorsTest, HostReportsPeerAbort) {
  Begin(1);
  hosts_[1]->Abort(absl::ResourceExhaustedError("out of memory in layer fc1"));
  AwaitAborts(1);
  EXPECT_EQ(comms_->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(comms_->status().message()),
              ::testing::AllOf(HasSubstr("rank 1"), HasSubstr("out of memory in layer fc1")));
}

TEST_F(NcclCommunicatorsTest, NamesLostPeer) {
  Begin(1);
  hosts_[1]->Abort(absl::UnavailableError("rank 1 stops"));
  nccl_.SetState(ncclRemoteError, 0);
  AwaitAborts(1);
  EXPECT_THAT(std::string(comms_->status().message()), HasSubstr("rank 1"));
}

TEST_F(NcclCommunicatorsTest, DeviceFailureReachesPeers) {
  Begin(1);
  device_->Fail(absl::UnavailableError("Xid 79: fallen off the bus"));
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("fallen off the bus"));
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, ExternalAbortIsFinal) {
  Begin(1);
  const absl::Status reason = absl::CancelledError("the run was stopped");
  comms_->Fail(reason);
  comms_->Fail(absl::InternalError("later"));
  EXPECT_EQ(comms_->status(), reason);
  EXPECT_EQ(Exchange(), reason);
  AwaitAborts(1);
  EXPECT_THAT(std::string(AwaitPeer().message()), HasSubstr("the run was stopped"));
}

// An abort releases streams, so a caller that synchronizes must find the device failed by then. The
// hook keeps Fail inside the device until the watcher would have aborted if it could see the error.
TEST_F(NcclCommunicatorsTest, DeviceFailsBeforeAbort) {
  Begin(1);
  int failures = 0;
  const ErrorLogHook hook([&] {
    ++failures;
    const absl::Time until = absl::Now() + absl::Milliseconds(300);
    while (nccl_.Count("abort") == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(nccl_.Count("abort"), 0) << "aborted before the device had failed";
  });
  comms_->Fail(absl::UnavailableError("a peer is lost"));
  EXPECT_EQ(failures, 1);
  AwaitAborts(1);
}

// The device also fails if a peer is lost while the destructor finalizes.
TEST_F(NcclCommunicatorsTest, LossDuringFinalizeFailsDevice) {
  Begin(1);
  nccl_.on_finalize = [&] { hosts_[1]->Abort(absl::UnavailableError("rank 1 stops")); };
  nccl_.SetState(ncclSuccess, kForever);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("abort"), 1);
  EXPECT_THAT(std::string(device_->status().message()), HasSubstr("rank 1 stops"));
}

// A connected peer may be busy for longer than a connection may take.
TEST_F(NcclCommunicatorsTest, CallsHaveTheirOwnLimit) {
  Begin(1, absl::Milliseconds(50));
  comms_->set_timeout(absl::Milliseconds(300));
  nccl_.SetState(ncclSuccess, kForever);
  const absl::Time begin = absl::Now();
  const absl::Status status = Exchange();
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("300ms"));
}

TEST_F(NcclCommunicatorsTest, ErrorEndsGroupWait) {
  Begin(1);
  nccl_.SetState(ncclSuccess, kForever);
  std::thread other([&] {
    absl::SleepFor(absl::Milliseconds(20));
    hosts_[1]->Abort(absl::UnavailableError("rank 1 stops"));
  });
  const absl::Status status = Exchange();
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 stops"));
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, HangingAbortsAreAbandoned) {
  Begin(2, absl::Seconds(30), absl::Milliseconds(50));
  nccl_.HangAborts();
  nccl_.SetState(ncclRemoteError, 0);
  AwaitAborts(2);
  comms_.reset();
  nccl_.EndAborts();
  EXPECT_TRUE(nccl_.all_ended());
}

TEST_F(NcclCommunicatorsTest, LostDeviceIsAbandonedEarly) {
  Begin(1, absl::Seconds(30), absl::InfiniteDuration());
  nccl_.HangAborts();
  EXPECT_FALSE(device_->Check(cudaErrorECCUncorrectable, "a test"));
  ASSERT_TRUE(device_->lost());
  AwaitAborts(1);
  comms_.reset();
}

TEST_F(NcclCommunicatorsTest, HangingFinalizeIsAbandoned) {
  Begin(1, absl::Seconds(30), absl::Milliseconds(50));
  nccl_.HangAborts();
  nccl_.SetState(ncclSystemError, 20);
  comms_.reset();
  EXPECT_EQ(nccl_.Count("destroy"), 0);
  AwaitAborts(1);
}

TEST_F(NcclCommunicatorsTest, AbortsPendingSplit) {
  Begin(1, absl::Milliseconds(50));
  nccl_.slow_splits = true;
  nccl_.SetState(ncclSuccess, kForever);
  EXPECT_EQ(comms_->Split(0, 0, 0, "part").status().code(), absl::StatusCode::kDeadlineExceeded);
  AwaitAborts(2);
  comms_.reset();
  EXPECT_EQ(nccl_.created(), 2);
  EXPECT_TRUE(nccl_.all_ended());
}

TEST_F(NcclCommunicatorsTest, DeregistersBeforeDestroy) {
  Begin(2);
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
