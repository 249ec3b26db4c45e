// The listening socket of a worker process, through which peers connect to all of its groups.
//
// The listener's thread accepts connections, greets them and reads their headers concurrently, so
// that a silent peer delays no other peer. It hands the connections of a generation that is being
// connected to its ConnectGroup, which answers them. A connection of a later generation waits,
// because its peer may have received the assignment earlier. Other connections are refused with a
// reason, and a connection that sends anything else than a header is closed. The number of waiting
// connections and their time are bounded, and beyond the bound the host with the most connections
// loses its oldest one; a peer whose connection is dropped connects again. Counters:
//   transport_garbage_closed             not a header
//   transport_handshake_timeouts         no complete header in time
//   transport_refused_stale_generation, transport_refused_protocol, transport_refused_key,
//   transport_refused_place
//
// Thread-safe. Must outlive the ConnectGroup calls that use it; transports may outlive it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "base/log_limit.h"
#include "comm/transport/handshake.h"
#include "comm/transport/socket.h"

namespace cadre {

class TcpListener {
 public:
  struct Options {
    // host:port; port 0 selects a free port.
    std::string address = "127.0.0.1:0";
    // Maximum time for which a connection waits for its header and its group.
    absl::Duration wait_timeout = absl::Seconds(10);
    // Maximum number of connections that wait.
    size_t max_waiting = 64;
    // Must outlive the listener. May be null.
    Counters* counters = nullptr;
  };

  // A connection with a valid header of an expected generation, to be answered by its owner.
  struct Arrival {
    Socket socket;
    Header header;
  };

  // Errors: AlreadyExists for a taken port, InvalidArgument for a malformed address.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Listen(const Options& options);
  ~TcpListener();

  int port() const { return port_; }
  // The host of Options::address with the actual port.
  const std::string& address() const { return address_; }

  // Between Expect and Forget, connections of this group and generation to `rank` of `ranks` are
  // collected for TakeArrivals, and `wake` (may be null) is signaled for each. From Expect on,
  // older generations of the group are refused; after Forget, this one as well. Errors: Aborted if
  // this or a newer generation of the group was expected before.
  absl::Status Expect(const GroupIdentity& group, int rank, int ranks, const Socket* wake)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mutex_);
  // The connections that have arrived since the last call; the caller owns them.
  std::vector<Arrival> TakeArrivals(const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A connection that waits for its header or its group.
  struct Connection {
    Socket socket;
    absl::Time deadline;
    // IP address of the peer.
    std::string host;
    // Challenge of the greeting.
    Tag challenge{};
    std::string received;
    bool has_header() const { return received.size() == sizeof(Header); }
  };
  // The newest generation of a group that was expected.
  struct Generation {
    GroupIdentity group;
    // False after Forget.
    bool expected = true;
    uint32_t rank = 0;
    uint32_t ranks = 0;
    const Socket* wake = nullptr;
    std::vector<Arrival> arrivals;
  };
  // Digest of the run, and number of the group.
  using GroupKey = std::pair<uint64_t, uint32_t>;

  TcpListener(const Options& options, Socket socket, Socket wake, std::string address, int port);

  // The arguments of one poll: the wake descriptor, the connections and, if connections may be
  // accepted, the listening socket.
  struct Watch {
    std::vector<pollfd> polled;
    // Keys of the connections, in the order of `polled`.
    std::vector<uint64_t> ids;
    absl::Time until;
  };

  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  Watch NextWatch(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Handle(const Watch& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcceptAll(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the oldest connection of the host that has the most.
  void DropOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if the connection must not be kept: it was closed, delivered or refused.
  bool Read(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Delivers or refuses a connection that has its header. Returns false if it must wait.
  bool Deliver(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true: the connection must not be kept.
  bool Refuse(const Connection& connection, Answer::Code code, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The generation if it is the newest of its group and expected, or null.
  Generation* Find(const GroupIdentity& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(absl::string_view what);
  void DropExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Socket listening_;
  // Wakes the serving thread.
  const Socket wake_;
  const std::string address_;
  const int port_;

  absl::Mutex mutex_;
  // Set when the process has run out of descriptors: no connection is accepted before this time.
  absl::Time accept_after_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // In the order of arrival.
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupKey, Generation> newest_ ABSL_GUARDED_BY(mutex_);
  // Limits messages about refused connections, which any host can cause.
  LogLimit log_limit_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace cadre
