// One sequence of server-sent events for all viewers of a page.
//
// An event is formatted once, whatever the number of viewers. Each viewer has a position in the
// newest events; one that falls behind them is disconnected, and continues after its last event
// when it connects again.
//
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace cadre {

class EventStream {
 public:
  // `kept`: number of events for viewers that are behind; fewer if they are large.
  explicit EventStream(size_t kept = 64) : kept_(kept) {}

  // Sends an event to all viewers. `data` must not contain line breaks.
  void Publish(absl::string_view name, absl::string_view data) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends what a viewer ignores, so that broken connections end.
  void KeepAlive() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all connections, and those that begin later.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t viewers() const ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- For the server
  // Adds a viewer that continues after an event number, or, if that is unknown, with the newest
  // event. Returns its number. `wake` is called, with the lock held, when a viewer that waits has
  // something to read.
  uint64_t Join(uint64_t after, std::function<void()> wake) ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave(uint64_t viewer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies at most `size` bytes that the viewer has not read. 0: there are none, and `wait` was
  // called, with the lock held; -1: the connection ends.
  ssize_t Read(uint64_t viewer, char* buffer, size_t size, const std::function<void()>& wait)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Viewer {
    // Number of the next event, and the part of it that was read.
    uint64_t next = 0;
    size_t offset = 0;
    bool waits = false;
    std::function<void()> wake;
  };
  void Append(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t kept_;
  mutable absl::Mutex mutex_;
  std::deque<std::string> events_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of the first kept event.
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t last_viewer_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Viewer> viewers_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace cadre
