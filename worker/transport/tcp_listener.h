// Where a worker process waits for the other ranks of its groups: one listening socket for the
// life of the process, whatever groups come and go.
//
// A thread of its own accepts connections and reads their handshakes, many at once, so that a peer
// that falls silent holds up nobody. A connection whose group is not known here (the peer got its
// assignment first) is parked until it is. Connections that can never be right are refused by name;
// what is no greeting is closed at once. Both are counted:
//   transport_garbage_closed           said what is no greeting
//   transport_handshake_timeouts       said too little in time
//   transport_refused_stale_generation, transport_refused_schema, transport_refused_place
//
// Thread-safe. Must outlive the ConnectGroup calls that use it; transports may outlive it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/counters.h"
#include "worker/transport/handshake.h"
#include "worker/transport/socket.h"

namespace cadre {

class TcpListener {
 public:
  struct Options {
    // host:port; port 0 takes a free one.
    std::string address = "127.0.0.1:0";
    // Within this time a handshake must be complete.
    absl::Duration handshake_timeout = absl::Seconds(5);
    // A connection for a group that is not known here is dropped after this time; its peer may
    // connect again.
    absl::Duration park_timeout = absl::Seconds(60);
    // Connections that are not handed out yet; beyond it the oldest is dropped.
    size_t max_waiting = 256;
    // Must outlive the listener. May be null.
    Counters* counters = nullptr;
  };

  // A rank of this process that waits for its group.
  struct Expectation {
    GroupIdentity group;
    int rank = 0;
    int ranks = 0;
    // What callers are told of this rank.
    uint64_t host = 0;
    bool shares_memory = false;
    // Woken whenever somebody arrives, until Forget. May be null.
    const Socket* wake = nullptr;
  };

  // A connection whose caller was welcomed.
  struct Arrival {
    Socket socket;
    Greeting greeting;
  };

  // Errors: AlreadyExists for a taken port, InvalidArgument for a malformed address.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Listen(const Options& options);
  ~TcpListener();

  int port() const { return port_; }
  // The host of Options::address with the port actually taken.
  const std::string& address() const { return address_; }

  // Used to connect a group. Between Expect and Forget, connections of exactly this group and
  // generation are collected for TakeReceived; older generations of the group are refused from now
  // on, and this one after Forget.
  // Errors: Aborted if this or a newer generation of the group was expected before.
  absl::Status Expect(const Expectation& expectation) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mutex_);
  // The connection of rank `from` for this purpose, if it has come.
  std::optional<Arrival> TakeReceived(const GroupIdentity& group, int from, Purpose purpose)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A connection that is not handed out yet.
  struct Connection {
    Socket socket;
    absl::Time deadline;
    std::string received;
    // Once the handshake is complete; then the connection is parked.
    bool parked = false;
    Greeting greeting;
  };
  // Rank and purpose.
  using Place = std::pair<uint32_t, Purpose>;
  struct Expected {
    Expectation what;
    std::map<Place, Arrival> arrived;
  };
  // Names a group across its generations.
  using GroupKey = std::pair<std::string, uint32_t>;

  TcpListener(const Options& options, Socket socket, Socket wake, std::string address, int port);

  // What one poll watches: the wake descriptor, connections, and the listening socket when it may
  // accept.
  struct Watch {
    std::vector<pollfd> polled;
    // Of the connections, in the order of `polled` after the wake descriptor.
    std::vector<uint64_t> ids;
    absl::Time until;
  };

  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  Watch NextWatch(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Handle(const Watch& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcceptAll(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the connection is done with (refused or broken).
  bool ReadGreeting(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Hands out a connection whose greeting is there, or refuses it. False: it has to be parked.
  bool HandOut(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const Connection& connection, Answer::Code code, const std::string& reason);
  void Count(absl::string_view what);
  void DropExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const Socket listening_;
  // Written to make the serving thread look again.
  const Socket wake_;
  const std::string address_;
  const int port_;

  absl::Mutex mutex_;
  // Out of descriptors: accept nothing until then.
  absl::Time accept_after_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // By number of arrival, so that the first is the oldest.
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<GroupKey, Expected> expected_ ABSL_GUARDED_BY(mutex_);
  // Newest generation that was expected of each group.
  std::map<GroupKey, uint64_t> newest_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace cadre
