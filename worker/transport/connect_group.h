// Connects the ranks of a group: by shared memory where two share a host, by TCP otherwise.
//
// Rank i calls all lower ranks and is called by all higher ones. The first connection of a pair is
// its control connection. Over it the two settle whether they can share memory; if not, how many
// connections each channel gets, which follows from the round trip that the first one shows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/transport.h"

namespace cadre {

struct ConnectOptions {
  // By then the group must be complete.
  absl::Time deadline = absl::InfiniteFuture();
  // Asked every few milliseconds while connecting; true ends the attempt. May be empty.
  std::function<bool()> cancelled;
  // Longest wait of the transport during which no byte moves.
  absl::Duration timeout = absl::Seconds(60);
  // False: TCP even between ranks of one host. A pair shares memory if both want it.
  bool shared_memory = true;
  // Connections of each channel over TCP, at most kMostLanes; 0: as many as the link's round trip
  // asks for. The higher rank of a pair decides.
  int lanes = 0;
};

// Connects rank `rank` with `peers` (host:port of every rank's listener, by rank; its own entry is
// not used). Returns when all connections of this rank stand.
// Errors: DeadlineExceeded naming the ranks that are missing and their addresses; Cancelled;
// Aborted when a peer says that the generation is over; FailedPrecondition when a peer speaks
// another schema or has another place for this rank; Aborted, too, when a connected rank hangs up
// while others are awaited; InvalidArgument for a malformed address. Host names are resolved by the
// system, which may take as long as its resolver's own timeout.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGroup(TcpListener& listener,
                                                        const GroupIdentity& group, int rank,
                                                        const std::vector<std::string>& peers,
                                                        const ConnectOptions& options);

}  // namespace cadre
