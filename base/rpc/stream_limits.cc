// gRPC may run the callbacks of a stream, including OnDone, on the thread that cancels it, so no
// lock is held then. It destroys the context of a stream after OnDone, so OnDone waits while
// another thread uses the context (End).
#include "base/rpc/stream_limits.h"

#include <algorithm>

#include "base/rpc/identity.h"

namespace cadre {
namespace {

// Parts of the limit after which streams are examined.
constexpr int kExaminations = 8;

}  // namespace

StreamSlots::Slot StreamSlots::Take(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  const int of_peer = found == by_peer_.end() ? 0 : found->second;
  if (taken_ >= max_ || of_peer >= max_of_peer_) return Slot();
  ++taken_;
  ++by_peer_[peer];
  return Slot(this, peer);
}

void StreamSlots::Return(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  --taken_;
  const auto found = by_peer_.find(peer);
  if (--found->second == 0) by_peer_.erase(found);
}

OpenStreams::OpenStreams(int max, absl::Duration limit)
    : slots_(max), limit_(limit), thread_([this] { CancelSilent(); }) {}

OpenStreams::~OpenStreams() {
  {
    absl::MutexLock lock(&mutex_);
    const auto closed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ == 0; };
    changed_.WaitFor(mutex_, absl::InfiniteDuration(), closed);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

OpenStreams::Stream::Stream(OpenStreams& streams, grpc::CallbackServerContext* context)
    : streams_(streams), context_(context), slot_(streams.slots_.Take(PeerName(*context))) {
  absl::MutexLock lock(&streams_.mutex_);
  ++streams_.open_;
  streams_.streams_.insert(this);
}

void OpenStreams::Stream::Await() {
  absl::MutexLock lock(&streams_.mutex_);
  until_ = streams_.clock_.Now() + streams_.limit_;
}

void OpenStreams::Stream::Continue() {
  absl::MutexLock lock(&streams_.mutex_);
  until_ = absl::InfiniteFuture();
}

void OpenStreams::Stream::End(const std::function<void()>& destroy) {
  OpenStreams& streams = streams_;
  {
    absl::MutexLock lock(&streams.mutex_);
    streams.streams_.erase(this);
    if (streams.cancelled_ == this && std::this_thread::get_id() == streams.thread_.get_id()) {
      streams.cancelled_ = nullptr;
    }
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(streams.mutex_) {
      return streams.cancelled_ != this;
    };
    streams.changed_.WaitFor(streams.mutex_, absl::InfiniteDuration(), done);
  }
  destroy();
  absl::MutexLock lock(&streams.mutex_);
  --streams.open_;
  streams.changed_.NotifyAll();
}

OpenStreams::Stream* OpenStreams::FindSilent() {
  const absl::Time now = clock_.Now();
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [now](const Stream* stream) { return stream->until_ <= now; });
  return found == streams_.end() ? nullptr : *found;
}

void OpenStreams::CancelSilent() {
  absl::MutexLock lock(&mutex_);
  const auto ending = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_; };
  while (!changed_.WaitFor(mutex_, limit_ / kExaminations, ending)) {
    while (Stream* const silent = FindSilent()) {
      silent->until_ = absl::InfiniteFuture();
      cancelled_ = silent;
      mutex_.Unlock();
      silent->context_->TryCancel();
      mutex_.Lock();
      cancelled_ = nullptr;
      changed_.NotifyAll();
    }
  }
}

}  // namespace cadre
