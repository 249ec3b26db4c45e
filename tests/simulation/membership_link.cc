#include "tests/simulation/membership_link.h"

#include <algorithm>
#include <utility>

namespace cadre::simulation {
namespace {

constexpr absl::Duration kHandshake = absl::Seconds(10);

}  // namespace

void MembershipLink::Stop(bool host_lost) {
  life_.End();
  stream_life_.End();
  heartbeat_life_.End();
  if (connection_ != 0) network_.EndByClient(std::exchange(connection_, 0), host_lost);
  welcomed_ = false;
}

void MembershipLink::Dial() {
  stream_life_.End();
  connection_ = network_.Dial(options_.host,
                              {.message = [this](const v1::CoordinatorMessage& m) { OnMessage(m); },
                               .closed = [this] { OnClosed(); }});
  v1::MemberMessage message;
  *message.mutable_hello() = options_.hello();
  message.mutable_hello()->set_protocol(options_.protocol);
  message.mutable_hello()->set_member_id(member_id_);
  network_.Up(connection_, message);
  world_.timeline.After(kHandshake, stream_life_, [this] {
    if (welcomed_) return;
    network_.EndByClient(connection_, /*host_lost=*/false);
    OnClosed();
  });
}

bool MembershipLink::AcceptEpoch(uint64_t epoch) {
  if (epoch < epoch_) {
    world_.Count("stale_epochs");
    return false;
  }
  if (epoch > epoch_ && options_.record_epoch) options_.record_epoch(epoch);
  epoch_ = epoch;
  return true;
}

void MembershipLink::OnMessage(const v1::CoordinatorMessage& message) {
  if (!AcceptEpoch(message.epoch())) {
    network_.EndByClient(connection_, /*host_lost=*/false);
    return OnClosed();
  }
  if (message.has_welcome()) {
    member_id_ = message.welcome().member_id();
    heartbeat_ = absl::Milliseconds(message.welcome().heartbeat_ms());
    welcomed_ = true;
    ScheduleHeartbeat(heartbeat_);
    options_.on_connection(true);
    return;
  }
  options_.on_message(message);
  if (message.has_refused() && message.refused().refusal() == v1::REFUSAL_UNKNOWN_MEMBER) {
    member_id_.clear();
  }
}

void MembershipLink::OnClosed() {
  stream_life_.End();
  connection_ = 0;
  const bool was_welcomed = std::exchange(welcomed_, false);
  if (was_welcomed) options_.on_connection(false);
  world_.timeline.After(world_.dice.Between(absl::Milliseconds(50), absl::Seconds(2)), life_,
                        [this] { Dial(); });
}

void MembershipLink::Send(const v1::MemberMessage& message) {
  if (!welcomed_) return;
  network_.Up(connection_, message);
}

void MembershipLink::SendGoodbye() {
  v1::MemberMessage message;
  message.mutable_goodbye()->set_reason("drained");
  Send(message);
}

// Heartbeats follow a steady clock, which has no jumps.
void MembershipLink::OnClockJump(absl::Duration by) {
  if (world_.plant != Plant::kWallClockHeartbeats || !welcomed_) return;
  ScheduleHeartbeat(std::max(heartbeat_ - by, absl::ZeroDuration()));
}

void MembershipLink::ScheduleHeartbeat(absl::Duration delay) {
  heartbeat_life_.End();
  world_.timeline.After(delay, heartbeat_life_, [this] {
    if (!welcomed_) return;
    v1::MemberMessage message;
    *message.mutable_heartbeat() = options_.heartbeat();
    Send(message);
    ScheduleHeartbeat(heartbeat_);
  });
}

}  // namespace cadre::simulation
