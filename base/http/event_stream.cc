#include "base/http/event_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// Limit on the kept events, except for the newest one.
constexpr size_t kMaxBytes = 16 << 20;

}  // namespace

void EventStream::Publish(absl::string_view name, absl::string_view data) {
  absl::MutexLock lock(&mutex_);
  Append(
      absl::StrCat("id: ", first_ + events_.size(), "\nevent: ", name, "\ndata: ", data, "\n\n"));
}

void EventStream::KeepAlive() {
  absl::MutexLock lock(&mutex_);
  Append(":\n\n");
}

void EventStream::Append(std::string text) {
  bytes_ += text.size();
  events_.push_back(std::move(text));
  while (events_.size() > kept_ || (events_.size() > 1 && bytes_ > kMaxBytes)) {
    bytes_ -= events_.front().size();
    events_.pop_front();
    ++first_;
  }
  WakeAll();
}

void EventStream::WakeAll() {
  for (auto& [number, viewer] : viewers_) {
    if (std::exchange(viewer.waits, false)) viewer.wake();
  }
}

void EventStream::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  WakeAll();
}

size_t EventStream::viewers() const {
  absl::MutexLock lock(&mutex_);
  return viewers_.size();
}

uint64_t EventStream::Join(uint64_t after, std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  const uint64_t end = first_ + events_.size();
  const bool known = after >= first_ && after < end;
  const uint64_t newest = events_.empty() ? end : end - 1;
  viewers_[++last_viewer_] = {.next = known ? after + 1 : newest, .wake = std::move(wake)};
  return last_viewer_;
}

void EventStream::Leave(uint64_t viewer) {
  absl::MutexLock lock(&mutex_);
  viewers_.erase(viewer);
}

ssize_t EventStream::Read(uint64_t number, char* buffer, size_t size,
                          const std::function<void()>& wait) {
  absl::MutexLock lock(&mutex_);
  const auto found = viewers_.find(number);
  if (closed_ || found == viewers_.end() || found->second.next < first_) return -1;
  Viewer& viewer = found->second;
  size_t copied = 0;
  while (copied < size && viewer.next < first_ + events_.size()) {
    const std::string& text = events_[viewer.next - first_];
    const size_t part = std::min(size - copied, text.size() - viewer.offset);
    std::copy_n(text.data() + viewer.offset, part, buffer + copied);
    copied += part;
    viewer.offset += part;
    if (viewer.offset == text.size()) {
      ++viewer.next;
      viewer.offset = 0;
    }
  }
  if (copied == 0) {
    viewer.waits = true;
    wait();
  }
  return static_cast<ssize_t>(copied);
}

}  // namespace cadre
