#include "server/version_pull.h"

#include <algorithm>
#include <utility>

namespace cadre {

VersionPull::VersionPull(PullGrant grant, std::unique_ptr<VersionReader> reader, OnError on_error,
                         const FrameHead& frame)
    : grant_(std::move(grant)),
      reader_(std::move(reader)),
      on_error_(std::move(on_error)),
      frame_(frame),
      left_(grant_.elements) {}

absl::StatusOr<int64_t> VersionPull::Next(std::span<char> data) {
  constexpr int64_t kValueBytes = sizeof(float);
  int64_t elements = 0;
  while (left_ > 0 && std::ssize(data) >= kValueBytes) {
    const Interval& span = grant_.spans[span_];
    const int64_t n = std::min(std::ssize(data) / kValueBytes, span.size() - read_);
    if (reader_ == nullptr) {
      std::fill_n(data.begin(), n * kValueBytes, 0);
    } else if (const absl::Status read =
                   reader_->Read(span.begin + read_, data.first(n * kValueBytes));
               !read.ok()) {
      return on_error_(read);
    }
    data = data.subspan(n * kValueBytes);
    elements += n;
    left_ -= n;
    read_ += n;
    if (read_ == span.size()) {
      ++span_;
      read_ = 0;
    }
  }
  return elements;
}

}  // namespace cadre
