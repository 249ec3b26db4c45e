#include "tests/simulation/membership_link.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cadre::simulation {

void MembershipLink::Stop(bool host_lost) {
  life_.End();
  timer_life_.End();
  if (connection_ != 0) network_.EndByClient(std::exchange(connection_, 0), host_lost);
  state_.Close();
}

void MembershipLink::Dial() {
  connection_ = network_.Dial(options_.host,
                              {.message = [this](const v1::CoordinatorMessage& m) { OnMessage(m); },
                               .closed = [this] { OnClosed(); }});
  state_.Open(Now());
  network_.Up(connection_, state_.First(options_.hello()));
  ScheduleTimer();
}

void MembershipLink::Close() {
  network_.EndByClient(connection_, /*host_lost=*/false);
  OnClosed();
}

void MembershipLink::OnMessage(const v1::CoordinatorMessage& message) {
  if (!state_.AcceptEpoch(message.epoch())) {
    world_.Count("stale_epochs");
    return Close();
  }
  if (options_.record_epoch && message.epoch() > recorded_epoch_ &&
      options_.record_epoch(message.epoch())) {
    recorded_epoch_ = message.epoch();
  }
  if (message.has_welcome()) {
    state_.Welcome(message.welcome(), Now());
    ScheduleTimer();
    return options_.on_connection(true);
  }
  const bool accepted = options_.on_message(message);
  if (message.has_refused() && state_.Refuse(message.refused())) {
    world_.Count("members_refused");
    options_.on_refused();
  }
  if (!accepted) Close();
}

void MembershipLink::OnClosed() {
  timer_life_.End();
  connection_ = 0;
  const bool was_welcomed = state_.welcomed();
  const absl::Duration wait = state_.Close();
  if (was_welcomed) options_.on_connection(false);
  if (wait < absl::InfiniteDuration()) world_.timeline.After(wait, life_, [this] { Dial(); });
}

void MembershipLink::Send(const v1::MemberMessage& message) {
  state_.Queue(message);
  while (const auto next = state_.TakeMessage()) network_.Up(connection_, *next);
}

void MembershipLink::SendGoodbye() {
  v1::MemberMessage message;
  message.mutable_goodbye()->set_reason("drained");
  Send(message);
}

// Heartbeats follow a steady clock, which has no jumps.
void MembershipLink::OnClockJump(absl::Duration by) {
  if (world_.plant != Plant::kWallClockHeartbeats) return;
  jumps_ += by;
  ScheduleTimer();
}

void MembershipLink::ScheduleTimer() {
  timer_life_.End();
  const absl::Duration delay = std::max(state_.deadline() - Now(), absl::ZeroDuration());
  if (delay < absl::InfiniteDuration()) {
    world_.timeline.After(delay, timer_life_, [this] { OnTimer(); });
  }
}

void MembershipLink::OnTimer() {
  if (state_.TakeHandshakeTimeout(Now())) return Close();
  if (state_.TakeHeartbeat(Now())) {
    network_.Up(connection_, state_.HeartbeatOf(options_.heartbeat()));
  }
  ScheduleTimer();
}

}  // namespace cadre::simulation
