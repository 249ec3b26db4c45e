// How one rank connects with one other: the control connection, what the two settle over it, and
// the links of all channels.
//
// The higher rank of a pair calls, the lower one is called. If both are on one host and would share
// memory, the lower one offers a piece and the higher one tries to map it. If that is not to be,
// the higher one says how many connections each channel gets, and makes them.
//
// Never blocks, but for the system's resolver of names. Thread-compatible.
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

// What all pairings of a rank have in common; outlives them.
struct PairingTerms {
  // Expects the group.
  TcpListener& listener;
  GroupIdentity group;
  int rank = 0;
  int ranks = 0;
  uint64_t host = 0;
  // Of this rank; all empty if it does not share memory.
  WakeupNames wakeups;
  // Of each channel over TCP; 0: what the round trip asks for.
  int connections = 0;
  bool shares_memory() const { return !wakeups[0].empty(); }
};

class Pairing {
 public:
  virtual ~Pairing() = default;

  // Does what can be done now. Errors are final for the whole group: Aborted when the peer is gone
  // or has given up, FailedPrecondition when it will not have us.
  virtual absl::Status Advance(absl::Time now) = 0;
  // Adds what an unfinished pairing waits for: descriptors, or an earlier end of the wait. It also
  // waits for the listener's wake.
  virtual void Watch(std::vector<pollfd>& polled, absl::Time& until) const = 0;
  // Why the peer could not be reached yet, or OK.
  virtual absl::Status last_failure() const = 0;

  int peer() const { return peer_; }
  // The control connection stands.
  bool connected() const { return !links_.control.empty(); }
  const Socket& control() const { return links_.control; }
  // All links stand.
  bool done() const { return done_; }
  // Requires: done().
  PeerLinks Take() { return std::move(links_); }

 protected:
  Pairing(const PairingTerms& terms, int peer) : terms_(terms), peer_(peer) {}

  // Reads more of what the peer says next over the control connection. False: not all of it yet.
  absl::StatusOr<bool> ReadMessage(std::string* text);
  absl::Status SendMessage(const std::string& text);
  // The peer's end, with a code that says that this attempt is over.
  absl::Status HungUp(const absl::Status& how) const;
  // Side 0 is the one that made the memory.
  void ShareMemory(std::shared_ptr<SharedSegment> segment, int side,
                   std::vector<WakeupHandle> handles);
  // `connections` by channel and connection.
  void UseTcp(std::array<std::vector<Socket>, Transport::kChannels> connections);

  const PairingTerms& terms_;
  const int peer_;
  PeerLinks links_;

 private:
  bool done_ = false;
};

// Connections of one channel, where the pair settled on `connections`.
int ConnectionsOf(int channel, int connections);

// With the rank `peer`, whose listener is at `address`.
std::unique_ptr<Pairing> MakePairing(const PairingTerms& terms, int peer,
                                     const std::string& address);

}  // namespace cadre
