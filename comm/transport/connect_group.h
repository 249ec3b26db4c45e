// Connects the ranks of a group: by shared memory if two ranks share a host, by TCP otherwise.
//
// Rank i dials all lower ranks and accepts connections from all higher ones. The first connection
// of a pair is its control connection; its header and answer settle whether the pair shares memory.
// If not, the higher rank opens the TCP connections of the channels, whose number follows from the
// round trip of the control connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/tcp_listener.h"
#include "comm/transport/transport.h"

namespace cadre {

struct ConnectOptions {
  // When connecting fails with DeadlineExceeded.
  absl::Time deadline = absl::InfiniteFuture();
  // Called every few milliseconds while connecting; true cancels. May be empty.
  std::function<bool()> cancelled;
  // Maximum time without progress of the transport.
  absl::Duration timeout = absl::Seconds(60);
  // False: TCP even between ranks of one host. A pair shares memory only if both enable it.
  bool shared_memory = true;
  // TCP connections per channel, at most kMaxConnections; 0: derived from the round trip. The
  // higher rank of a pair decides.
  int connections = 0;
};

// Connects rank `rank` with `peers` (host:port of every rank's listener, by rank; its own entry is
// ignored). Returns when all connections of this rank are established.
// Errors, with the suspected ranks (suspects.h): DeadlineExceeded naming the missing ranks and
// their addresses; Cancelled; Aborted when a peer reports that the generation has ended, or a
// connected peer closes its connection; FailedPrecondition when a peer has an incompatible protocol
// or another key, or assigns this rank another position; InvalidArgument for a malformed address.
// The system resolves host names, which may block for as long as the timeout of its resolver.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options);

}  // namespace cadre
