// Failure protocol. Any thread may find the first error: the enqueuing thread, the watcher, or a
// caller of Fail. RecordFirst stores it and marks the device as failed in one critical section. The
// watcher waits on the same mutex and aborts the communicators afterwards, while Fail forwards the
// error to the peers over the host transport. The order matters: an abort releases streams that
// wait for a peer, and a caller that synchronizes with such a stream must find the device marked as
// failed; otherwise it would accept the memory of the interrupted collective as a result.
//
// Aborts may block forever, so they run without mutex_, on separate threads, after the handles have
// been taken out of comms_.
#include "comm/transport/nccl/nccl_communicators.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/transport/suspects.h"

namespace cadre {
namespace {

// Interval at which the watcher polls.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(2);
// Maximum time to wait for the host transport to name the peer that NCCL has lost.
constexpr absl::Duration kPeerNameDelay = absl::Milliseconds(20);
// Maximum time for which checks and aborts of communicators wait for an NCCL group call that is
// being enqueued. Enqueuing takes microseconds unless it blocks.
constexpr absl::Duration kEnqueueTimeout = absl::Milliseconds(100);
// NCCL cannot finalize if peers have exited already.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
// Limit that replaces a longer end_timeout on a lost device, on which a call that ends a
// communicator and takes longer never returns.
constexpr absl::Duration kEndTimeoutLost = absl::Seconds(1);
// Number of polls without a pause; over established connections an operation takes microseconds.
constexpr int kQuickPolls = 2000;
constexpr absl::Duration kPause = absl::Microseconds(50);

// Waits between polls, up to a deadline.
class PollTimer {
 public:
  explicit PollTimer(absl::Duration limit) : deadline_(absl::Now() + limit) {}
  // Returns false after the deadline.
  bool Wait() {
    if (polls_++ < kQuickPolls) {
      std::this_thread::yield();
      return true;
    }
    absl::SleepFor(kPause);
    return absl::Now() < deadline_;
  }

 private:
  const absl::Time deadline_;
  int polls_ = 0;
};

}  // namespace

NcclCommunicators::NcclCommunicators(const NcclApi& api, CudaDevice& device, Transport& host,
                                     absl::Duration timeout, absl::Duration end_timeout)
    : api_(api),
      device_(device),
      host_(host),
      timeout_(timeout),
      end_timeout_(end_timeout),
      watcher_([this] { Watch(); }) {}

NcclCommunicators::~NcclCommunicators() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  watcher_.join();
  // The device may have failed since the watcher's last poll; the peers would wait for this rank.
  absl::Status device = SetDevice();
  if (device.ok()) device = device_.status();
  if (!device.ok()) Fail(std::move(device));
  // In reverse order of creation: splits before their parents.
  while (true) {
    std::shared_ptr<Comm> comm;
    {
      absl::MutexLock lock(&mutex_);
      if (Failed() || comms_.empty()) break;
      comm = std::move(comms_.back());
      comms_.pop_back();
    }
    if (comm->handle == nullptr) continue;
    for (const auto& [memory, handle] : comm->registered) {
      api_.deregister_memory(comm->handle, handle);
    }
    const absl::Status finalized = Finalize(comm->handle);
    // A timeout is not an error: results remain valid although peers have exited.
    if (!finalized.ok() && !absl::IsDeadlineExceeded(finalized)) Fail(finalized);
    EndComms(finalized.ok() ? api_.destroy : api_.abort, {{comm->handle, comm}});
  }
  // Aborts the communicators that the watcher has not aborted.
  AbortAll();
}

absl::Status NcclCommunicators::SetDevice() {
  if (device_.Check(device_.api().set_device(device_.ordinal()), "choice of the device for NCCL")) {
    return absl::OkStatus();
  }
  return device_.status();
}

absl::Status NcclCommunicators::Finalize(ncclComm_t comm) {
  ncclResult_t state = api_.finalize(comm);
  PollTimer timer(kFinalizeTimeout);
  while (state == ncclInProgress) {
    CADRE_RETURN_IF_ERROR(host_.Poll());
    if (!timer.Wait()) return absl::DeadlineExceededError("NCCL did not finalize a communicator");
    const ncclResult_t polled = api_.async_error(comm, &state);
    if (IsError(polled)) state = polled;
  }
  if (state == ncclSuccess) return absl::OkStatus();
  return NcclStatus(api_, state, comm, "finalizing a communicator");
}

int NcclCommunicators::Add(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  comms_.push_back(std::make_shared<Comm>());
  comms_.back()->name = std::string(name);
  return std::ssize(comms_) - 1;
}

absl::StatusOr<int> NcclCommunicators::Make(const ncclUniqueId& id, absl::string_view name) {
  const int number = Add(name);
  CADRE_RETURN_IF_ERROR(
      Create(number, absl::StrCat("connecting ", host_.size(), " ranks for ", name),
             [&](Comm& comm, ncclConfig_t& config) {
               const ncclResult_t result =
                   api_.init(&comm.created, host_.size(), id, host_.rank(), &config);
               comm.handle = comm.created;
               return result;
             }));
  return number;
}

absl::StatusOr<int> NcclCommunicators::Split(int parent, int color, int key,
                                             absl::string_view name) {
  const int number = Add(name);
  const std::string operation = absl::StrCat("splitting NCCL's communicator for ", name);
  CADRE_RETURN_IF_ERROR(
      Create(parent, operation,
             [&](Comm& from, ncclConfig_t& config) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
               from.splitting = comms_[number];
               return api_.split(from.handle, color, key, &from.splitting->created, &config);
             }));
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    At(parent).splitting = nullptr;
    At(number).handle = At(number).created;
    At(number).operation = operation;
  }
  CADRE_RETURN_IF_ERROR(AwaitReady(number, operation));
  return number;
}

absl::Status NcclCommunicators::Create(
    int busy, const std::string& operation,
    absl::FunctionRef<ncclResult_t(Comm& busy, ncclConfig_t& config)> create) {
  if (absl::Status selected = SetDevice(); !selected.ok()) return FailedWith(std::move(selected));
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Comm& comm = At(busy);
    comm.operation = operation;
    const ncclResult_t result = create(comm, config);
    if (IsError(result)) error = ErrorOf(comm, result, operation);
  }
  if (!error.ok()) return FailedWith(std::move(error));
  return AwaitReady(busy, operation);
}

absl::Status NcclCommunicators::Enqueue(int number, const CallTag& tag,
                                        absl::FunctionRef<ncclResult_t(ncclComm_t)> calls) {
  ncclComm_t comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    last_ = tag;
    enqueuing_ = true;
    enqueuing_since_ = absl::Now();
    comm = At(number).handle;
  }
  ncclResult_t ended = ncclSuccess;
  ncclResult_t result = api_.group_start();
  if (result == ncclSuccess) {
    result = calls(comm);
    // Called even after an error, because an NCCL group call must be closed.
    ended = api_.group_end();
    if (!IsError(result)) result = ended;
  }
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    enqueuing_ = false;
    if (Failed()) return status_;
    if (IsError(result)) error = NcclStatus(api_, result, comm, tag.ToString());
  }
  if (!error.ok()) return FailedWith(WithLostPeer(error));
  if (ended == ncclSuccess) return absl::OkStatus();
  return AwaitReady(number, tag.ToString());
}

ncclResult_t NcclCommunicators::StateOf(const Comm& comm) {
  if (comm.handle == nullptr) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = api_.async_error(comm.handle, &state);
  return IsError(result) ? result : state;
}

absl::Status NcclCommunicators::ErrorOf(const Comm& comm, ncclResult_t error,
                                        absl::string_view what) {
  return comm.operation.empty() ? NcclStatus(api_, error, comm.handle, what)
                                : NcclInitStatus(api_, error, comm.handle, comm.operation);
}

absl::Status NcclCommunicators::AwaitReady(int number, absl::string_view what) {
  PollTimer timer(timeout_);
  while (true) {
    absl::Status error;
    {
      absl::MutexLock lock(&mutex_);
      if (Failed()) return status_;
      Comm& comm = At(number);
      const ncclResult_t state = StateOf(comm);
      if (state == ncclSuccess) {
        comm.operation.clear();
        return absl::OkStatus();
      }
      if (IsError(state)) error = ErrorOf(comm, state, what);
    }
    if (!error.ok()) return FailedWith(WithLostPeer(error));
    if (timer.Wait()) continue;
    return FailedWith(absl::DeadlineExceededError(
        absl::StrCat(what, ": rank ", host_.rank(), " waited ", absl::FormatDuration(timeout_),
                     " for NCCL to connect to the other ranks: a rank is late, or its network is "
                     "not reachable")));
  }
}

void NcclCommunicators::Register(void* memory, size_t bytes) {
  if (!SetDevice().ok()) return;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Comm>& comm : comms_) {
    if (Failed() || comm->handle == nullptr) continue;
    void* handle = nullptr;
    if (api_.register_memory(comm->handle, memory, bytes, &handle) != ncclSuccess) continue;
    if (handle != nullptr) comm->registered.emplace_back(memory, handle);
  }
}

void NcclCommunicators::Deregister(void* memory) {
  if (const absl::Status selected = SetDevice(); !selected.ok()) LOG(WARNING) << selected;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Comm>& comm : comms_) {
    std::erase_if(comm->registered, [&](const std::pair<void*, void*>& entry) {
      if (entry.first != memory) return false;
      if (comm->handle != nullptr) api_.deregister_memory(comm->handle, entry.second);
      return true;
    });
  }
}

bool NcclCommunicators::RecordFirst(const absl::Status& error) {
  CHECK(!error.ok());
  absl::MutexLock lock(&mutex_);
  if (Failed()) return false;
  // The device is marked as failed before the watcher can see the error and abort.
  device_.Fail(error);
  status_ = error;
  return true;
}

void NcclCommunicators::Fail(absl::Status error) {
  // The watcher aborts the communicators while the peers are informed.
  if (RecordFirst(error)) host_.Abort(std::move(error));
}

absl::Status NcclCommunicators::FailedWith(absl::Status error) {
  Fail(std::move(error));
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status NcclCommunicators::status() const {
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
  }
  CADRE_RETURN_IF_ERROR(host_.status());
  return device_.status();
}

void NcclCommunicators::Watch() {
  // Aborts apply to the current device of the thread.
  device_.api().set_device(device_.ordinal());
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || Failed();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&ended), kWatchInterval);
      if (Failed()) break;
      if (stopping_) return;
    }
    if (absl::Status error = Poll(); !error.ok()) Fail(std::move(error));
  }
  AbortAll();
}

absl::Status NcclCommunicators::Poll() {
  CADRE_RETURN_IF_ERROR(host_.Poll());
  CADRE_RETURN_IF_ERROR(device_.status());
  return WithLostPeer(CheckComms());
}

absl::Status NcclCommunicators::CheckComms() {
  absl::MutexLock lock(&mutex_);
  if (enqueuing_ && absl::Now() < enqueuing_since_ + kEnqueueTimeout) return absl::OkStatus();
  for (const std::shared_ptr<Comm>& comm : comms_) {
    const ncclResult_t state = StateOf(*comm);
    if (!IsError(state)) continue;
    return ErrorOf(*comm, state,
                   absl::StrCat("rank ", host_.rank(), ", ", comm->name, ", at the latest in ",
                                last_.ToString()));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicators::WithLostPeer(const absl::Status& error) const {
  if (!absl::IsUnavailable(error)) return error;
  const absl::Time until = absl::Now() + kPeerNameDelay;
  while (host_.Poll().ok() && absl::Now() < until) absl::SleepFor(kPause);
  const absl::Status loss = host_.status();
  if (loss.ok() || loss == error) return error;
  return WithSuspects(
      absl::Status(loss.code(), absl::StrCat(loss.message(), "; ", error.message())),
      SuspectsOf(loss));
}

void NcclCommunicators::AbortAll() {
  std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms;
  {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !enqueuing_; };
    mutex_.AwaitWithTimeout(absl::Condition(&idle), kEnqueueTimeout);
    for (const std::shared_ptr<Comm>& comm : comms_) {
      comm->registered.clear();
      if (comm->handle == nullptr) continue;
      comms.emplace_back(std::exchange(comm->handle, nullptr), comm);
    }
  }
  EndComms(api_.abort, std::move(comms));
}

void NcclCommunicators::EndComms(EndFunction end,
                                 std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms) {
  struct Ending {
    std::thread thread;
    std::shared_ptr<absl::Notification> done;
  };
  std::vector<Ending> endings;
  for (auto& [handle, comm] : comms) {
    auto done = std::make_shared<absl::Notification>();
    // The thread owns all that it and NCCL use, because it may outlive this object.
    std::thread thread([end, set_device = device_.api().set_device, ordinal = device_.ordinal(),
                        handle = handle, comm = std::move(comm), done] {
      set_device(ordinal);
      end(handle);
      // Ending `handle` has also ended a split in progress, which may have created a communicator.
      if (comm->splitting != nullptr && comm->splitting->created != nullptr) {
        end(comm->splitting->created);
      }
      done->Notify();
    });
    endings.push_back({std::move(thread), std::move(done)});
  }
  const absl::Time begin = absl::Now();
  const auto late = [&] {
    const absl::Duration limit =
        device_.lost() ? std::min(kEndTimeoutLost, end_timeout_) : end_timeout_;
    return absl::Now() - begin > limit;
  };
  int abandoned = 0;
  for (Ending& ending : endings) {
    while (!ending.done->WaitForNotificationWithTimeout(kWatchInterval) && !late()) {
    }
    if (ending.done->HasBeenNotified()) {
      ending.thread.join();
    } else {
      ending.thread.detach();
      ++abandoned;
    }
  }
  if (abandoned == 0) return;
  LOG(WARNING) << "NCCL did not end " << abandoned << " of " << endings.size()
               << " communicators; they are abandoned"
               << (device_.lost() ? ", since the device is lost" : "");
}

}  // namespace cadre
