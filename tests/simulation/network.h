// The control network: streams between members and the coordinator, which delay, break and stall.
//
// A stream is ordered and reliable until it breaks; then what is on its way may be lost, and each
// side notices in its own time. While a host is cut off, nothing passes and the sides may give
// streams up; what was under way passes after it if nobody did.
//
// Thread-compatible.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class Network {
 public:
  // What the member is told.
  struct Client {
    std::function<void(const v1::CoordinatorMessage&)> message;
    std::function<void()> closed;
  };
  // What the coordinator is told.
  struct Server {
    std::function<void(ConnectionId)> opened;
    std::function<void(ConnectionId, const v1::MemberMessage&)> message;
    std::function<void(ConnectionId)> closed;
  };

  explicit Network(World& world) : world_(world) {}

  // ---- The coordinator
  void Listen(Server server);
  // The process has died: all its streams are over.
  void Unlisten();
  void Down(ConnectionId connection, const v1::CoordinatorMessage& message);
  // Ends the stream behind what was sent on it.
  void EndByServer(ConnectionId connection);

  // ---- Members
  // Always gives a stream; where nobody answers, it is closed later.
  ConnectionId Dial(const std::string& host, Client client);
  void Up(ConnectionId connection, const v1::MemberMessage& message);
  // The process closes it, or has died. `host_lost`: nobody says so to the other side.
  void EndByClient(ConnectionId connection, bool host_lost);

  // ---- Faults
  void Break(ConnectionId connection);
  // Breaks one of the open streams.
  void BreakAny();
  // From the coordinator; with `bulk` from everybody.
  void Cut(const std::string& host, absl::Duration duration, bool bulk);
  bool IsCut(const std::string& host) const;
  bool IsCutFromAll(const std::string& host) const;
  void HealAll();

 private:
  // What is on its way in one direction; nothing in it: the end.
  template <typename Message>
  struct Way {
    std::deque<std::optional<Message>> parcels;
    absl::Time last = absl::InfinitePast();
  };
  struct Stream {
    std::string host;
    Client client;
    Way<v1::MemberMessage> up;
    Way<v1::CoordinatorMessage> down;
    // The server has heard of it.
    bool opened = false;
    // Nothing more gets in.
    bool broken = false;
    bool client_gone = false;
    bool server_gone = false;
  };

  Stream* Find(ConnectionId connection);
  template <typename Message>
  void Post(ConnectionId connection, Way<Message> Stream::*way, std::optional<Message> message);
  // Delivers the oldest parcel, later if the host is cut off.
  template <typename Message>
  void Arrive(ConnectionId connection, Way<Message> Stream::*way);
  void Take(ConnectionId connection, Stream& stream,
            const std::optional<v1::MemberMessage>& parcel);
  void Take(ConnectionId connection, Stream& stream,
            const std::optional<v1::CoordinatorMessage>& parcel);
  void NotifyClient(ConnectionId connection);
  void NotifyServer(ConnectionId connection);
  void EraseIfOver(ConnectionId connection);
  absl::Time CutUntil(const std::string& host) const;

  World& world_;
  std::optional<Server> server_;
  ConnectionId last_ = 0;
  std::map<ConnectionId, Stream> streams_;
  std::map<std::string, absl::Time> cuts_;
  std::map<std::string, absl::Time> bulk_cuts_;
};

}  // namespace cadre::simulation
