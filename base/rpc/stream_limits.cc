// gRPC may run the callbacks of a stream, including OnDone, on the thread that cancels it, so no
// lock is held then. It destroys the context of a stream after OnDone, so OnDone waits while
// another thread uses the context (End).
#include "base/rpc/stream_limits.h"

#include "base/rpc/identity.h"

namespace cadre {
namespace {

// Parts of the limit after which streams are examined.
constexpr int kExaminations = 8;

}  // namespace

OpenStreams::OpenStreams(int max, absl::Duration limit)
    : slots_(max),
      examine_every_(limit / kExaminations),
      silent_(limit),
      thread_([this] { CancelStreams(); }) {}

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
}

void OpenStreams::Stream::Await() {
  absl::MutexLock lock(&streams_.mutex_);
  streams_.silent_.Await(this, streams_.clock_.Now());
}

void OpenStreams::Stream::Continue() {
  absl::MutexLock lock(&streams_.mutex_);
  streams_.silent_.Continue(this);
}

void OpenStreams::Stream::Cancel() {
  absl::MutexLock lock(&streams_.mutex_);
  if (done_) return;
  streams_.cancels_.insert(this);
  streams_.changed_.NotifyAll();
}

void OpenStreams::Stream::End(const std::function<void()>& destroy) {
  OpenStreams& streams = streams_;
  {
    absl::MutexLock lock(&streams.mutex_);
    done_ = true;
    streams.silent_.Continue(this);
    streams.cancels_.erase(this);
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

std::optional<OpenStreams::Stream*> OpenStreams::TakeCancelled() {
  if (cancels_.empty()) return silent_.Take(clock_.Now());
  return cancels_.extract(cancels_.begin()).value();
}

void OpenStreams::CancelStreams() {
  absl::MutexLock lock(&mutex_);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || !cancels_.empty();
  };
  while (true) {
    changed_.WaitFor(mutex_, examine_every_, has_work);
    if (ending_) return;
    while (const std::optional<Stream*> stream = TakeCancelled()) {
      cancelled_ = *stream;
      mutex_.Unlock();
      (*stream)->context_->TryCancel();
      mutex_.Lock();
      cancelled_ = nullptr;
      changed_.NotifyAll();
    }
  }
}

}  // namespace cadre
