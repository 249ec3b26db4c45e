// The simulated control network: streams between members and the coordinator, with delays, broken
// streams and hosts that are cut off.
//
// A stream is ordered and reliable until it breaks. Then messages in transit may be lost, and each
// side detects the break at a different time. While a host is cut off, no message is delivered, and
// either side may give up its streams; messages on the other streams are delivered afterwards.
// Messages to a stopped process wait. The queues of a congested stream are short; like those of the
// real programs, they end the stream when they are full.
//
// Two coordinators may listen: a stream leads to one of those that its host reaches.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Network {
 public:
  // Number of a coordinator.
  using Endpoint = size_t;

  // Callbacks of the member.
  struct Client {
    std::function<void(const v1::CoordinatorMessage&)> message;
    std::function<void()> closed;
  };
  // Callbacks of the coordinator.
  struct Server {
    std::function<void(ConnectionId)> opened;
    std::function<void(ConnectionId, const v1::MemberMessage&)> message;
    std::function<void(ConnectionId)> closed;
  };

  explicit Network(World& world) : world_(world) {}

  // ---- The coordinator
  void Listen(Endpoint endpoint, Server server);
  // The process has ended: all its streams end.
  void Unlisten(Endpoint endpoint);
  void Down(ConnectionId connection, const v1::CoordinatorMessage& message);
  // Ends the stream after the messages sent on it.
  void EndByServer(ConnectionId connection);

  // ---- Members
  // Always returns a stream; if no coordinator listens, the stream is closed later.
  ConnectionId Dial(const std::string& host, Client client);
  void Up(ConnectionId connection, const v1::MemberMessage& message);
  // Whether the stream is open at both ends, and whether no message is on its way on it.
  bool IsIntact(ConnectionId connection) const;
  bool IsQuiet(ConnectionId connection) const;
  // The process closes the stream or has crashed. `host_lost`: the other side is not notified.
  void EndByClient(ConnectionId connection, bool host_lost);

  // Receives a copy of every message that a member sends.
  void set_listener(std::function<void(const v1::MemberMessage&)> listener) {
    listener_ = std::move(listener);
  }

  // ---- Faults
  void Break(ConnectionId connection);
  // Breaks one of the open streams.
  void BreakAny();
  // The host was cut off (HostConditions): either side may give up its streams.
  void OnCut(const std::string& host);
  // Streams to coordinators that their hosts do not reach (HostConditions) break.
  void BreakUnreachable();

  // ---- Bulk calls between members
  // Whether a call of `from` reaches `to` and is answered now.
  bool Reaches(const std::string& from, const std::string& to) const;
  // Delay of one message of such a call.
  absl::Duration TransferTime(const std::string& from, const std::string& to);

 private:
  // Messages in transit in one direction; an empty one is the end of the stream.
  template <typename Message>
  struct Direction {
    std::deque<std::optional<Message>> messages;
    absl::Time last = absl::InfinitePast();
  };
  struct Stream {
    std::string host;
    Client client;
    Direction<v1::MemberMessage> up;
    Direction<v1::CoordinatorMessage> down;
    // The coordinator, which was notified of the stream; nothing before the first message.
    std::optional<Endpoint> endpoint;
    // Whether the stream is broken: it accepts no more messages.
    bool broken = false;
    bool client_gone = false;
    bool server_gone = false;
  };

  Stream* Find(ConnectionId connection);
  // The coordinator's callbacks; null if it does not run, or the stream has none yet.
  const Server* ServerOf(const Stream& stream) const;
  // A coordinator that listens and that the host reaches, if any.
  std::optional<Endpoint> Choose(const std::string& host);
  template <typename Message>
  void Post(ConnectionId connection, Direction<Message> Stream::*direction,
            std::optional<Message> message);
  // Whether the stream is congested and the message must not be queued: it ends the stream.
  template <typename Message>
  bool OverflowsQueue(ConnectionId connection, const Direction<Message>& to);
  // From when messages in this direction are delivered.
  template <typename Message>
  absl::Time Opens(const std::string& host) const;
  // Delivers the oldest message or, if it cannot be delivered now, tries again later.
  template <typename Message>
  void Arrive(ConnectionId connection, Direction<Message> Stream::*direction);
  void Take(ConnectionId connection, Stream& stream,
            const std::optional<v1::MemberMessage>& message);
  void Take(ConnectionId connection, Stream& stream,
            const std::optional<v1::CoordinatorMessage>& message);
  void NotifyClient(ConnectionId connection);
  void NotifyServer(ConnectionId connection);
  void EraseIfOver(ConnectionId connection);

  World& world_;
  std::map<Endpoint, Server> servers_;
  std::function<void(const v1::MemberMessage&)> listener_;
  ConnectionId last_ = 0;
  std::map<ConnectionId, Stream> streams_;
};

}  // namespace cadre::simulation
