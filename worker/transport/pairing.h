// Connects one rank with one peer: establishes the control connection, negotiates over it, and
// creates the links of all channels. pairing.cc describes the protocol.
//
// Never blocks, except while the system resolves a host name. Thread-compatible.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/handshake.h"
#include "worker/transport/link_transport.h"
#include "worker/transport/shared_memory.h"
#include "worker/transport/tcp_listener.h"
#include "worker/transport/wakeup.h"

namespace cadre {

// The common parameters of a rank's pairings. Must outlive them.
struct PairingTerms {
  // Must expect the group (TcpListener::Expect).
  TcpListener& listener;
  GroupIdentity group;
  int rank = 0;
  int ranks = 0;
  uint64_t host = 0;
  // This rank's wakeups; empty names if it does not share memory.
  WakeupNames wakeups;
  // TCP connections per channel; 0: derived from the round trip.
  int connections = 0;
  bool shares_memory() const { return !wakeups[0].empty(); }
};

class Pairing {
 public:
  virtual ~Pairing() = default;

  // Makes all progress that is possible without blocking. Errors end the attempt of the whole
  // group: Aborted if the peer has closed its connection, FailedPrecondition if it refuses this
  // rank.
  virtual absl::Status Advance(absl::Time now) = 0;
  // Adds the descriptors that an unfinished pairing waits for, or reduces `until` to its next
  // retry. A pairing also makes progress when the listener receives a connection.
  virtual void Watch(std::vector<pollfd>& polled, absl::Time& until) const = 0;
  // Why the last attempt to reach the peer failed, or OK.
  virtual absl::Status last_failure() const = 0;

  int peer() const { return peer_; }
  // The control connection is established.
  bool connected() const { return !links_.control.empty(); }
  const Socket& control() const { return links_.control; }
  // All links are established.
  bool done() const { return done_; }
  // Requires: done().
  PeerLinks Take() { return std::move(links_); }

 protected:
  Pairing(const PairingTerms& terms, int peer) : terms_(terms), peer_(peer) {}

  // Reads more of the peer's next message; returns whether it is complete.
  absl::StatusOr<bool> ReadMessage(std::string* bytes);
  absl::Status SendMessage(const std::string& bytes);
  // The error for a closed control connection: Aborted, because this generation can no longer
  // connect, and callers would retry Unavailable.
  absl::Status ClosedError(const absl::Status& cause) const;
  // `side`: see MakeSharedMemoryLink.
  void ShareMemory(std::shared_ptr<SharedSegment> segment, int side,
                   std::vector<WakeupHandle> handles);
  // `connections`: by channel.
  void UseTcp(std::array<std::vector<Socket>, Transport::kChannels> connections);

  const PairingTerms& terms_;
  const int peer_;
  PeerLinks links_;

 private:
  bool done_ = false;
};

// Number of connections of a channel if the pair has settled on `connections`.
int ConnectionsOf(int channel, int connections);

// `address`: of the peer's listener.
std::unique_ptr<Pairing> MakePairing(const PairingTerms& terms, int peer,
                                     const std::string& address);

}  // namespace cadre
