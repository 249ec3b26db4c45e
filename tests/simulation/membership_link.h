// The member's side of its stream to the coordinator, as in coordinator/client/membership_client.
// It connects until it receives Welcome, stores the member's id, sends heartbeats and reconnects. A
// message of a lower epoch than the highest one received ends the stream unread.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class MembershipLink {
 public:
  struct Options {
    std::string host;
    uint32_t protocol = 0;
    std::function<v1::Hello()> hello;
    // All messages except Welcome.
    std::function<void(const v1::CoordinatorMessage&)> on_message;
    std::function<void(bool)> on_connection;
    std::function<v1::Heartbeat()> heartbeat;
    // The highest epoch that an earlier process recorded, and how a higher one is recorded, if at
    // all.
    uint64_t epoch = 0;
    std::function<void(uint64_t)> record_epoch = nullptr;
  };

  MembershipLink(World& world, Network& network, Options options)
      : world_(world),
        network_(network),
        options_(std::move(options)),
        life_(&world.hosts[options_.host].process),
        stream_life_(&world.hosts[options_.host].process),
        heartbeat_life_(&world.hosts[options_.host].process) {}
  ~MembershipLink() { Stop(/*host_lost=*/false); }

  void Start() { Dial(); }
  // The process has ended.
  void Stop(bool host_lost);
  // The host's wall clock has jumped.
  void OnClockJump(absl::Duration by);
  // Sends a message, which is lost if there is no stream.
  void Send(const v1::MemberMessage& message);
  void SendGoodbye();
  bool connected() const { return welcomed_; }
  // The stream, if it is not broken; 0 otherwise.
  ConnectionId intact_stream() const {
    return welcomed_ && network_.IsIntact(connection_) ? connection_ : 0;
  }
  const std::string& member_id() const { return member_id_; }

 private:
  void Dial();
  void OnMessage(const v1::CoordinatorMessage& message);
  bool AcceptEpoch(uint64_t epoch);
  void OnClosed();
  void ScheduleHeartbeat(absl::Duration delay);

  World& world_;
  Network& network_;
  const Options options_;
  // Lifetimes of the process and of its current stream.
  Lifetime life_;
  Lifetime stream_life_;
  ConnectionId connection_ = 0;
  bool welcomed_ = false;
  std::string member_id_;
  uint64_t epoch_ = options_.epoch;
  absl::Duration heartbeat_ = absl::Seconds(2);
  Lifetime heartbeat_life_;
};

}  // namespace cadre::simulation
