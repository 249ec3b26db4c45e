// A link over one or more TCP connections. The byte stream is cut into stripes, which use the
// connections in turn. So several connections fill a link with a large product of bandwidth and
// delay, although the window of each is bounded.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport/link.h"
#include "comm/transport/socket.h"

namespace cadre {

// Bytes sent over one connection before the next is used.
inline constexpr size_t kStripeBytes = size_t{256} << 10;

// The number of connections that fill a link: bandwidth times round trip, divided by the window; at
// least 1, at most kMaxConnections.
inline constexpr int kMaxConnections = 8;
int ConnectionsFor(double round_trip_seconds, double bytes_per_second, double window_bytes);

// Owns the sockets. Requires: at least one; connected, non-blocking, in the same order on both
// ends.
std::unique_ptr<Link> MakeTcpLink(std::vector<Socket> connections);

}  // namespace cadre
