// How often a coordinator begins again because a member knows a higher epoch. Each time ends all
// streams, so members that claim ever higher epochs, by a defect or on purpose, could otherwise
// keep a coordinator from doing anything else.
//
// Pure, except for its state. Not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace cadre {

class BeginLimit {
 public:
  // After the first time, another one is possible after kMinWait, and each further one after twice
  // as long as the one before, at most kMaxWait. It begins with kMinWait again after kForget.
  static constexpr absl::Duration kMinWait = absl::Seconds(1);
  static constexpr absl::Duration kMaxWait = absl::Minutes(10);
  static constexpr absl::Duration kForget = absl::Hours(1);

  // Whether the coordinator may begin again at `now`; it then does.
  bool Take(absl::Time now) {
    const absl::Duration passed = now - last_;
    if (passed < wait_) return false;
    wait_ = passed >= kForget ? kMinWait : std::min(2 * wait_, kMaxWait);
    last_ = now;
    return true;
  }
  // The time before which it may not.
  absl::Time next() const { return last_ + wait_; }

 private:
  absl::Time last_ = absl::InfinitePast();
  absl::Duration wait_;
};

}  // namespace cadre
