// A link over one or more TCP connections. With several, bytes go over them in turn, a stripe each,
// so that long and fast links are filled although the window of each connection is bounded.
#pragma once

#include <memory>
#include <vector>

#include "worker/transport/link.h"
#include "worker/transport/socket.h"

namespace cadre {

// Bytes that go over one connection before the next has its turn.
inline constexpr size_t kStripeBytes = size_t{256} << 10;

// How many connections fill a link: enough windows of `window` bytes for what is under way at
// `bytes_per_second` in one round trip; at least 1, at most kMaxConnections.
inline constexpr int kMaxConnections = 8;
int ConnectionsFor(double round_trip_seconds, double bytes_per_second, double window_bytes);

// Requires: at least one socket, connected and non-blocking, in the same order on both ends.
std::unique_ptr<Link> MakeTcpLink(std::vector<Socket> connections);

}  // namespace cadre
