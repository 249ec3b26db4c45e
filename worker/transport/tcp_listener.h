// The listening socket of a worker process, through which peers connect to all of its groups.
//
// The listener's thread accepts connections and reads their greetings concurrently, so that a
// silent peer delays no other peer. A connection of a generation that is not expected yet is parked
// (kept), because its peer may have received the assignment earlier. An invalid greeting is refused
// with a reason, and a connection that sends anything else is closed. Counters:
//   transport_garbage_closed             not a greeting
//   transport_handshake_timeouts         no complete greeting in time
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
    // host:port; port 0 selects a free port.
    std::string address = "127.0.0.1:0";
    // Maximum time until a greeting is complete.
    absl::Duration handshake_timeout = absl::Seconds(5);
    // Maximum time for which a connection is parked; its peer may connect again.
    absl::Duration park_timeout = absl::Seconds(60);
    // Maximum number of connections that no group has taken; beyond it the oldest is dropped.
    size_t max_waiting = 256;
    // Must outlive the listener. May be null.
    Counters* counters = nullptr;
  };

  // A rank of this process whose group is being connected.
  struct Expectation {
    GroupIdentity group;
    int rank = 0;
    int ranks = 0;
    // Sent to callers in the answer.
    uint64_t host = 0;
    bool shares_memory = false;
    // Signaled when a connection arrives, until Forget. May be null.
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
  // The host of Options::address with the actual port.
  const std::string& address() const { return address_; }

  // Between Expect and Forget, connections of this group and generation are collected for
  // TakeReceived. From Expect on, older generations of the group are refused; after Forget, this
  // one as well. Errors: Aborted if this or a newer generation of the group was expected before.
  absl::Status Expect(const Expectation& expectation) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the connection of rank `from` for this purpose if it has arrived; the caller owns it.
  std::optional<Arrival> TakeReceived(const GroupIdentity& group, int from, Purpose purpose)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A connection that no group has taken yet.
  struct Connection {
    Socket socket;
    absl::Time deadline;
    std::string received;
    // The greeting is complete and its generation is not expected yet.
    bool parked = false;
    Greeting greeting;
  };
  struct Expected {
    Expectation expectation;
    // By rank and purpose.
    std::map<std::pair<int, Purpose>, Arrival> arrived;
  };
  // Run and number of a group, without its generation.
  using GroupKey = std::pair<std::string, uint32_t>;

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
  // Returns false if the connection must be closed.
  bool ReadGreeting(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Delivers or refuses a connection whose greeting is complete. Returns false if it must be
  // parked.
  bool Deliver(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(const Connection& connection, Answer::Code code, const std::string& reason);
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
  std::map<GroupKey, Expected> expected_ ABSL_GUARDED_BY(mutex_);
  // Newest generation of each group that was expected.
  std::map<GroupKey, uint64_t> newest_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace cadre
