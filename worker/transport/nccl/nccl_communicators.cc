#include "worker/transport/nccl/nccl_communicators.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "worker/transport/nccl/nccl_error.h"

namespace cadre {
namespace {

// Between two looks of the watcher.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(2);
// When NCCL has lost somebody, the host transport says whom within so long, or not at all.
constexpr absl::Duration kPeerNameDelay = absl::Milliseconds(20);
// A group that is being enqueued is over within microseconds; one that is not hangs for the very
// reason that aborts it.
constexpr absl::Duration kEnqueueTimeout = absl::Milliseconds(100);
// Peers that are gone already cannot say goodbye to NCCL.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
// An end that takes longer on a device that is lost will not come.
constexpr absl::Duration kEndTimeoutLost = absl::Seconds(1);
// Looks that follow one another without a pause: connections that stand take microseconds.
constexpr int kQuickPolls = 2000;
constexpr absl::Duration kPause = absl::Microseconds(50);

bool IsError(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// Waits a little more with every call.
class PollTimer {
 public:
  explicit PollTimer(absl::Duration limit) : deadline_(absl::Now() + limit) {}
  // False: it is over.
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
                                     absl::Duration timeout, absl::Duration ending)
    : api_(api), device_(device), host_(host), timeout_(timeout), ending_(ending), watcher_([this] {
        Watch();
      }) {}

NcclCommunicators::~NcclCommunicators() {
  StopWatching();
  // What the watcher has not seen any more; peers would wait for this rank.
  absl::Status device = SetDevice();
  if (device.ok()) device = device_.status();
  if (!device.ok()) Fail(std::move(device));
  std::vector<std::shared_ptr<Comm>> all;
  bool failed = false;
  {
    absl::MutexLock lock(&mutex_);
    failed = Failed();
    if (!failed) all.swap(all_);
  }
  if (failed) AbortAll();  // What the watcher has not.
  // The youngest first: splits before what they were split from.
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if ((*one)->handle == nullptr) continue;
    for (const auto& [memory, handle] : (*one)->registered) {
      api_.deregister_memory((*one)->handle, handle);
    }
    EndComms(Finalize((*one)->handle) ? api_.destroy : api_.abort, {{(*one)->handle, *one}});
  }
}

absl::Status NcclCommunicators::SetDevice() {
  if (device_.Check(device_.api().set_device(device_.ordinal()), "choice of the device for NCCL")) {
    return absl::OkStatus();
  }
  return device_.status();
}

bool NcclCommunicators::Finalize(ncclComm_t comm) {
  ncclResult_t state = api_.finalize(comm);
  PollTimer timer(kFinalizeTimeout);
  while (state == ncclInProgress) {
    const bool group_failed = !host_.Poll().ok();
    if (group_failed || !timer.Wait()) return false;
    if (IsError(api_.async_error(comm, &state))) return false;
  }
  return state == ncclSuccess;
}

int NcclCommunicators::Add(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  all_.push_back(std::make_shared<Comm>());
  all_.back()->name = std::string(name);
  return static_cast<int>(all_.size()) - 1;
}

absl::StatusOr<int> NcclCommunicators::Make(const ncclUniqueId& id, absl::string_view name) {
  const int number = Add(name);
  const std::string what = absl::StrCat("connecting ", host_.size(), " ranks for ", name);
  if (absl::Status selected = SetDevice(); !selected.ok()) return FailedWith(std::move(selected));
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Comm& one = At(number);
    one.making = what;
    const ncclResult_t result = api_.init(&one.made, host_.size(), id, host_.rank(), &config);
    one.handle = one.made;
    if (IsError(result)) error = ErrorOf(one, result, what);
  }
  if (!error.ok()) return FailedWith(std::move(error));
  CADRE_RETURN_IF_ERROR(AwaitReady(number, what));
  return number;
}

absl::StatusOr<int> NcclCommunicators::Split(int parent, int color, int key,
                                             absl::string_view name) {
  const int number = Add(name);
  const std::string what = absl::StrCat("splitting NCCL's communicator for ", name);
  if (absl::Status selected = SetDevice(); !selected.ok()) return FailedWith(std::move(selected));
  absl::Status error;
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Comm& from = At(parent);
    from.making = what;
    from.splitting = all_[number];
    const ncclResult_t result = api_.split(from.handle, color, key, &At(number).made, &config);
    if (IsError(result)) error = ErrorOf(from, result, what);
  }
  if (!error.ok()) return FailedWith(std::move(error));
  CADRE_RETURN_IF_ERROR(AwaitReady(parent, what));
  {
    absl::MutexLock lock(&mutex_);
    if (Failed()) return status_;
    At(parent).splitting = nullptr;
    At(number).handle = At(number).made;
    At(number).making = what;
  }
  CADRE_RETURN_IF_ERROR(AwaitReady(number, what));
  return number;
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

ncclResult_t NcclCommunicators::StateOf(const Comm& one) {
  if (one.handle == nullptr) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.async_error(one.handle, &state);
  return IsError(asked) ? asked : state;
}

absl::Status NcclCommunicators::ErrorOf(const Comm& one, ncclResult_t state,
                                        absl::string_view what) {
  return one.making.empty() ? NcclStatus(api_, state, one.handle, what)
                            : NcclInitStatus(api_, state, one.handle, one.making);
}

absl::Status NcclCommunicators::AwaitReady(int number, absl::string_view what) {
  PollTimer timer(timeout_);
  while (true) {
    absl::Status error;
    {
      absl::MutexLock lock(&mutex_);
      if (Failed()) return status_;
      Comm& one = At(number);
      const ncclResult_t state = StateOf(one);
      if (state == ncclSuccess) {
        one.making.clear();
        return absl::OkStatus();
      }
      if (IsError(state)) error = ErrorOf(one, state, what);
    }
    if (!error.ok()) return FailedWith(WithLostPeer(error));
    if (timer.Wait()) continue;
    return FailedWith(absl::DeadlineExceededError(
        absl::StrCat(what, ": rank ", host_.rank(), " has waited ", absl::FormatDuration(timeout_),
                     " for NCCL to reach the other ranks: one of them is late, or its network "
                     "cannot be reached")));
  }
}

void NcclCommunicators::Register(void* memory, size_t bytes) {
  if (!SetDevice().ok()) return;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Comm>& one : all_) {
    if (Failed() || one->handle == nullptr) continue;
    void* handle = nullptr;
    if (api_.register_memory(one->handle, memory, bytes, &handle) != ncclSuccess) continue;
    if (handle != nullptr) one->registered.emplace_back(memory, handle);
  }
}

void NcclCommunicators::Deregister(void* memory) {
  if (const absl::Status selected = SetDevice(); !selected.ok()) LOG(WARNING) << selected;
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Comm>& one : all_) {
    const auto gone = std::remove_if(one->registered.begin(), one->registered.end(),
                                     [&](const std::pair<void*, void*>& each) {
                                       if (each.first != memory) return false;
                                       if (one->handle != nullptr)
                                         api_.deregister_memory(one->handle, each.second);
                                       return true;
                                     });
    one->registered.erase(gone, one->registered.end());
  }
}

bool NcclCommunicators::RecordFirst(const absl::Status& error) {
  CHECK(!error.ok());
  absl::MutexLock lock(&mutex_);
  if (Failed()) return false;
  // The device fails before the watcher can see the error. An abort releases streams that wait for a
  // peer, and a caller who synchronizes with such a stream must then find the device failed:
  // otherwise it would take the memory of the interrupted collective for a result.
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
  // What NCCL does when it aborts is about this device.
  device_.api().set_device(device_.ordinal());
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto over = [this]()
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || Failed(); };
      mutex_.AwaitWithTimeout(absl::Condition(&over), kWatchInterval);
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
  for (const std::shared_ptr<Comm>& one : all_) {
    const ncclResult_t state = StateOf(*one);
    if (!IsError(state)) continue;
    return ErrorOf(*one, state,
                   absl::StrCat("rank ", host_.rank(), ", ", one->name, ", at the latest in ",
                                last_.ToString()));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicators::WithLostPeer(const absl::Status& error) const {
  if (!absl::IsUnavailable(error)) return error;
  const absl::Time until = absl::Now() + kPeerNameDelay;
  while (host_.Poll().ok() && absl::Now() < until) absl::SleepFor(kPause);
  const absl::Status named = host_.status();
  if (named.ok() || named == error) return error;
  return absl::Status(named.code(), absl::StrCat(named.message(), "; ", error.message()));
}

void NcclCommunicators::AbortAll() {
  std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms;
  {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !enqueuing_; };
    mutex_.AwaitWithTimeout(absl::Condition(&idle), kEnqueueTimeout);
    for (const std::shared_ptr<Comm>& one : all_) {
      one->registered.clear();
      if (one->handle == nullptr) continue;
      comms.emplace_back(std::exchange(one->handle, nullptr), one);
    }
  }
  EndComms(api_.abort, std::move(comms));
}

void NcclCommunicators::EndComms(ncclResult_t (*end)(ncclComm_t),
                                 std::vector<std::pair<ncclComm_t, std::shared_ptr<Comm>>> comms) {
  struct Ending {
    std::thread thread;
    std::shared_ptr<absl::Notification> over;
  };
  std::vector<Ending> ends;
  for (auto& [comm, one] : comms) {
    auto over = std::make_shared<absl::Notification>();
    // Everything that the thread uses is its own, and so is what NCCL still writes to: it may
    // outlive this object.
    std::thread thread([end, set_device = device_.api().set_device, ordinal = device_.ordinal(),
                        comm = comm, one = std::move(one), over] {
      set_device(ordinal);
      end(comm);
      // With that a split has come to its end as well: to none, or to one that nobody else has.
      if (one->splitting != nullptr && one->splitting->made != nullptr) {
        end(one->splitting->made);
      }
      over->Notify();
    });
    ends.push_back({std::move(thread), std::move(over)});
  }
  const absl::Time begin = absl::Now();
  const auto late = [&] {
    return absl::Now() - begin > (device_.lost() ? std::min(kEndTimeoutLost, ending_) : ending_);
  };
  int left = 0;
  for (Ending& each : ends) {
    while (!each.over->WaitForNotificationWithTimeout(kWatchInterval) && !late()) {
    }
    if (each.over->HasBeenNotified()) {
      each.thread.join();
    } else {
      each.thread.detach();
      ++left;
    }
  }
  if (left == 0) return;
  LOG(WARNING) << "NCCL has not ended " << left << " of " << ends.size()
               << " communicators; they are left unfinished"
               << (device_.lost() ? ", since the device is lost" : "");
}

void NcclCommunicators::StopWatching() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  watcher_.join();
}

}  // namespace cadre
