// The transport over links: makes messages of bytes, moves many at a time, and sees to it that the
// end of one rank is heard by all at once.
//
// Between every two ranks there are a control connection (see control_connections.h) and one link
// for each channel (see channel.h). A thread that waits on any link watches all control
// connections, the wakeup of its channel and a wake descriptor, so that it learns of whatever
// happens at once.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/transport/link.h"
#include "worker/transport/socket.h"
#include "worker/transport/transport.h"
#include "worker/transport/wakeup.h"

namespace cadre {

// One peer as connecting leaves it.
struct PeerLinks {
  // Connected, non-blocking. Empty for the rank itself.
  Socket control;
  std::array<std::unique_ptr<Link>, Transport::kChannels> links;
  uint64_t host = 0;
};

// `wakeups`: this rank's, one for each channel, which shared-memory links of its peers ring.
// `peers`: by rank. Errors: ResourceExhausted for no descriptor left.
absl::StatusOr<std::unique_ptr<Transport>> MakeLinkTransport(
    int rank, std::vector<PeerLinks> peers,
    std::array<std::unique_ptr<Wakeup>, Transport::kChannels> wakeups, absl::Duration timeout);

}  // namespace cadre
