// Decides by how much leases are extended after a stall of the coordinator.
//
// While the loop does not read, the messages of members wait in its queue or on the network, so its
// own delay must not count as their silence. After a stall, every lease is extended once, by the
// time during which the loop did not read and by a second in which what waits on the network is
// received. Under sustained overload, in which every turn is a
// stall, only the first one extends leases: each turn reads what has arrived, so a member that
// stays silent for longer than its lease is lost.
//
// Pure and thread-compatible.
#pragma once

#include <utility>

#include "absl/time/time.h"

namespace cadre {

// A time without reading that is longer than this is a stall.
inline constexpr absl::Duration kMinStall = absl::Seconds(1);
inline constexpr absl::Duration kReceiveTime = absl::Seconds(1);

class StallMonitor {
 public:
  // The loop has read its messages after not reading for `unread`. Returns the time by which leases
  // must be extended; zero: not at all.
  absl::Duration OnRead(absl::Duration unread) {
    const bool stalled = unread > kMinStall;
    const bool before = std::exchange(stalled_, stalled);
    return stalled && !before ? unread + kReceiveTime : absl::ZeroDuration();
  }

 private:
  bool stalled_ = false;
};

}  // namespace cadre
