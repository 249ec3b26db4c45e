// The protocol of a member's stream to the coordinator (v1::Membership.Join), over as many streams
// as it needs: the member's id, epochs, heartbeats, queued messages, refusals and waits. A pure
// state machine without clock, threads or network. For each stream its driver calls
//
//   Open, First           the Hello is to be written
//   AcceptEpoch           for each message of the coordinator, then Welcome or Refuse
//   Queue                 after Welcome: a message is to be written
//   TakeHeartbeat, TakeMessage       at deadline(), and after Queue: what is to be written
//   Close                 the stream has ended; the next one is to be opened after a wait
//
// The drivers are MembershipClient (gRPC) and tests/simulation/membership_link (virtual time).
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/backoff.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class MembershipStream {
 public:
  // `seed`: of the waits; must differ between processes. `epoch`: the highest one that an earlier
  // process of this member recorded. `servers`: the number of coordinators, of which one leads.
  MembershipStream(uint64_t seed, uint64_t epoch, size_t max_queued, size_t servers = 1);

  // Number of the coordinator to which the next stream is to be opened, or the present one is.
  size_t server() const { return server_; }

  void Open(absl::Time now);
  // `hello`, with protocol, id and the highest epoch.
  v1::MemberMessage First(v1::Hello hello) const;

  // A message has this epoch. False: the coordinator has been replaced by one of a higher epoch,
  // and the stream must end.
  bool AcceptEpoch(uint64_t epoch);
  void Welcome(const v1::Welcome& welcome, absl::Time now);
  // The owner has seen the refusal. Returns whether the member must not join again.
  bool Refuse(const v1::Refused& refused);
  // Why the coordinator is not accepted, or has refused the member. Returns whether this differs
  // from the last reason, so that it should be logged. A Welcome forgets that.
  bool IsNewReason(std::string reason);

  // False: there is no stream with Welcome, or its queue is full.
  bool Queue(v1::MemberMessage message);
  bool full() const { return queue_.size() >= max_queued_; }
  bool has_messages() const { return !queue_.empty(); }
  // When a heartbeat is due, or the wait for Welcome ends.
  absl::Time deadline() const;
  // Whether the wait for Welcome has ended, so that the stream must end. True once.
  bool TakeHandshakeTimeout(absl::Time now);
  // Whether a heartbeat is due, before queued messages: it carries the counters, and a long queue
  // must not let the lease expire. (Every message renews the lease.)
  bool TakeHeartbeat(absl::Time now);
  std::optional<v1::MemberMessage> TakeMessage();
  v1::MemberMessage HeartbeatOf(v1::Heartbeat heartbeat) const;

  // Queued messages are lost; the owner sends them again after the next Welcome. Returns the wait
  // before the next stream, which grows to several seconds while the only coordinator, or the last
  // of several, refuses the member or has an epoch that is too low; infinite after a refusal that
  // is final.
  absl::Duration Close();

  // Whether the stream has received Welcome, and whether any has.
  bool welcomed() const { return welcomed_; }
  bool ever_welcomed() const { return ever_welcomed_; }
  // The highest epoch.
  uint64_t epoch() const { return epoch_; }
  // As in the last Welcome; empty before the first.
  const std::string& member_id() const { return member_id_; }

 private:
  const size_t max_queued_;
  const size_t servers_;
  size_t server_ = 0;
  // Waits for coordinators that are not reached; and for those that do not accept the member, or
  // that it does not accept.
  Backoff backoff_;
  Backoff rejection_backoff_;
  // The stream has ended with such a rejection before a Welcome.
  bool rejected_ = false;
  std::string reason_;
  bool welcomed_ = false;
  bool ever_welcomed_ = false;
  bool refused_ = false;
  absl::Time handshake_until_ = absl::InfiniteFuture();
  absl::Duration heartbeat_ = absl::Seconds(1);
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  std::deque<v1::MemberMessage> queue_;
  std::string member_id_;
  // The highest epoch received or recorded, and the number of messages with a lower one.
  uint64_t epoch_;
  uint64_t stale_epochs_ = 0;
};

}  // namespace cadre
