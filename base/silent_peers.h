// The streams of a service that wait for their peers, and until when.
//
// Pure and thread-compatible: time is an argument.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "absl/time/time.h"

namespace cadre {

template <typename Stream>
class SilentPeers {
 public:
  // A peer is silent if it has not acted for `limit`.
  explicit SilentPeers(absl::Duration limit) : limit_(limit) {}

  // The peer of the stream must act from now on.
  void Await(const Stream& stream, absl::Time now) { until_[stream] = now + limit_; }
  // It has acted, or the stream has ended.
  void Continue(const Stream& stream) { until_.erase(stream); }
  // A stream whose peer is silent, and which must be cancelled. Each is returned once.
  std::optional<Stream> Take(absl::Time now) {
    const auto found = std::find_if(until_.begin(), until_.end(),
                                    [now](const auto& entry) { return entry.second <= now; });
    if (found == until_.end()) return std::nullopt;
    const Stream stream = found->first;
    until_.erase(found);
    return stream;
  }

 private:
  const absl::Duration limit_;
  std::map<Stream, absl::Time> until_;
};

}  // namespace cadre
