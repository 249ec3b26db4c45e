#include "comm/send_queue.h"

#include <algorithm>
#include <utility>

#include "glog/logging.h"

namespace cadre {
namespace {

// In place of a hash of members, so that a message to several ranks, of which each may receive from
// several ranks, has one tag.
constexpr uint32_t kGroup = 0x5e9d;

}  // namespace

CallTag ReceiveTag(uint32_t number) {
  return {.collective = Collective::kAllToAll,
          .algorithm = Algorithm::kSingle,
          .dtype = DType::kBytes,
          .group = kGroup,
          .sequence = number};
}

SendQueue::~SendQueue() {
  bool unsent = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    unsent = !expected_.empty();
  }
  // The thread may be blocked in a send.
  if (unsent) {
    transport_.Abort(absl::CancelledError("a rank left before it had sent what others wait for"));
  }
  if (thread_.joinable()) thread_.join();
}

void SendQueue::Expect(std::span<const uint32_t> numbers) {
  if (numbers.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  expected_.insert(expected_.end(), numbers.begin(), numbers.end());
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
}

void SendQueue::Post(uint32_t number, std::vector<Transfer> transfers) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  const bool is_new = ready_.try_emplace(number, std::move(transfers)).second;
  CHECK(is_new) << "message " << number << " is posted twice";
}

absl::Status SendQueue::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &SendQueue::IsDone));
  return status_;
}

bool SendQueue::AreGone(std::span<const uint32_t> numbers) const {
  return std::none_of(numbers.begin(), numbers.end(), [this](uint32_t number) {
    mutex_.AssertReaderHeld();
    return ready_.count(number) > 0;
  });
}

bool SendQueue::AreSent(std::span<const uint32_t> numbers) const {
  absl::MutexLock lock(&mutex_);
  return AreGone(numbers);
}

absl::Status SendQueue::WaitFor(std::span<const uint32_t> numbers) {
  absl::MutexLock lock(&mutex_);
  const auto sent = [this, numbers]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || AreGone(numbers);
  };
  mutex_.Await(absl::Condition(&sent));
  return status_;
}

void SendQueue::Loop() {
  while (true) {
    uint32_t number = 0;
    std::vector<Transfer> transfers;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &SendQueue::CanSend));
      if (stopping_) return;
      number = expected_.front();
      transfers = std::move(ready_[number]);
    }
    absl::Status status = transport_.Run(Transport::kSends, ReceiveTag(number), transfers, {});
    absl::MutexLock lock(&mutex_);
    ready_.erase(number);
    expected_.pop_front();
    if (status.ok()) continue;
    status_ = std::move(status);
    return;
  }
}

}  // namespace cadre
