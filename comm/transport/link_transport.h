// The transport that sends messages over links (link.h): shared memory or TCP.
//
// Between every two ranks there are a control connection (control_connections.h) and one link per
// channel (channel.h). A thread that waits for any link also polls all control connections, the
// wakeup of its channel and a wake descriptor, so it notices an error anywhere in the group.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/link.h"
#include "comm/transport/socket.h"
#include "comm/transport/transport.h"
#include "comm/transport/wakeup.h"

namespace cadre {

// The established connections to one peer.
struct PeerLinks {
  // Connected, non-blocking. Empty for the rank itself.
  Socket control;
  std::array<std::unique_ptr<Link>, Transport::kChannels> links;
  // See Transport::host.
  uint64_t host = 0;
};

// The wakeups of one rank, by channel.
using Wakeups = std::array<std::unique_ptr<Wakeup>, Transport::kChannels>;
// Errors: ResourceExhausted if no file descriptor is available.
absl::StatusOr<Wakeups> MakeWakeups();

// `wakeups`: this rank's wakeups, which the peers' shared-memory links signal. `peers`: by rank.
// `timeout`: maximum time without progress. Errors: ResourceExhausted, as MakeWakeups.
absl::StatusOr<std::unique_ptr<Transport>> MakeLinkTransport(int rank, std::vector<PeerLinks> peers,
                                                             Wakeups wakeups,
                                                             absl::Duration timeout);

}  // namespace cadre
