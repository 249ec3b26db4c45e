// A group over TCP: a full mesh of connections, made by rank (the higher calls the lower).
//
// The sockets do not block and every wait watches all of them, so that a rank that waits for one
// peer learns of the death of another; no thread per peer. Payloads travel straight from and to the
// caller's memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/tcp_listener.h"
#include "worker/comm/transport.h"

namespace cadre {

struct ConnectOptions {
  // By then the group must be complete.
  absl::Time deadline = absl::InfiniteFuture();
  // Asked every few milliseconds while connecting; true ends the attempt. May be empty.
  std::function<bool()> cancelled;
  // Longest wait of the transport during which no byte moves.
  absl::Duration timeout = absl::Seconds(60);
};

// Connects rank `rank` with `peers` (host:port of every rank's listener, by rank; its own entry is
// not used). Returns when all connections of this rank stand.
// Errors: DeadlineExceeded naming the ranks that are missing; Cancelled; Aborted when a peer says
// that the generation is over; FailedPrecondition when a peer speaks another schema or has another
// place for this rank; Aborted, too, when a connected rank hangs up while others are awaited;
// InvalidArgument for a malformed address.
// Host names are resolved by the system, which may take as long as its resolver's own timeout.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options);

}  // namespace cadre
