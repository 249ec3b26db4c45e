// The member's side of its stream to the coordinator: drives coordinator/client/membership_stream
// as membership_client does.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "coordinator/client/membership_stream.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class MembershipLink {
 public:
  struct Options {
    std::string host;
    std::function<v1::Hello()> hello;
    // As in MembershipClient::Options.
    std::function<bool(const v1::CoordinatorMessage&)> on_message;
    std::function<void(bool)> on_connection;
    std::function<v1::Heartbeat()> heartbeat;
    // The member does not join again: its process ends.
    std::function<void()> on_refused;
    uint64_t epoch = 0;
    std::function<bool(uint64_t)> record_epoch = nullptr;
  };

  MembershipLink(World& world, Network& network, Options options)
      : world_(world),
        network_(network),
        options_(std::move(options)),
        life_(&world.hosts[options_.host].process),
        timer_life_(&world.hosts[options_.host].process),
        state_(world.dice.Bits(), options_.epoch, kMaxQueued) {}
  ~MembershipLink() { Stop(/*host_lost=*/false); }

  void Start() { Dial(); }
  // The process has ended.
  void Stop(bool host_lost);
  // The host's wall clock has jumped.
  void OnClockJump(absl::Duration by);
  // Sends a message, which is lost if there is no stream.
  void Send(const v1::MemberMessage& message);
  void SendGoodbye();
  bool connected() const { return state_.welcomed(); }
  // The stream, if it is not broken; 0 otherwise.
  ConnectionId intact_stream() const {
    return connected() && network_.IsIntact(connection_) ? connection_ : 0;
  }
  const std::string& member_id() const { return state_.member_id(); }

 private:
  // As in MembershipClient::Options. The network has the messages that are not yet written.
  static constexpr size_t kMaxQueued = 256;

  void Dial();
  // Ends the stream.
  void Close();
  void OnMessage(const v1::CoordinatorMessage& message);
  void OnClosed();
  void ScheduleTimer();
  void OnTimer();
  absl::Time Now() const { return world_.timeline.now() + jumps_; }

  World& world_;
  Network& network_;
  const Options options_;
  Lifetime life_;
  Lifetime timer_life_;
  MembershipStream state_;
  ConnectionId connection_ = 0;
  uint64_t recorded_epoch_ = options_.epoch;
  // By how much the clock that the stream follows has jumped.
  absl::Duration jumps_;
};

}  // namespace cadre::simulation
