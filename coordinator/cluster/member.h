// What the coordinator knows of a member of the cluster.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/events/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"
#include "proto/rank_slot.h"

namespace cadre {

// Orders by age ("w2" before "w10"): ids end in a counter.
struct MemberIdLess {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
};

struct Member {
  v1::MemberRecord record;
  // 0 while no stream is open.
  ConnectionId connection = 0;
  absl::Time last_heard;
  absl::Time lease_until;
  // How often its lease was extended since its last message.
  int extensions = 0;
  // Resources of the member's host, from its last Hello; 0: unknown.
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  // Counters from the member's last heartbeat.
  std::map<std::string, uint64_t> counters;
  // The rank that a worker holds in a group; none while it is idle.
  std::optional<v1::RankSlot> place;
  // Whether it receives no rank because of its standing, and whether that is so for a long time: it
  // is cordoned, quarantined or hung.
  bool excluded = false;
  bool withdrawn = false;
  // Progress of its training thread by the last heartbeat.
  uint64_t progress = 0;
  // Its latest step times, as in Heartbeat; 0: unknown.
  double step_seconds = 0;
  double wait_seconds = 0;
  // What it computes more slowly than its device could, by the last heartbeat.
  std::vector<v1::Fallback> fallbacks;
  // Aggregator: the orders that it has not carried out, by the last heartbeat.
  std::vector<v1::DelayedOrder> delayed_orders;
  // Why its last refused message was refused.
  std::string refused;
  // Rank of a program: what it was sent last that it waits for (v1::Waiting).
  std::string awaited;
  // It was released from a stalled group, and its training thread has not reacted since.
  struct Hung {
    absl::Time since;
    uint64_t progress = 0;
    bool recorded = false;
  };
  std::optional<Hung> hung;

  const std::string& id() const { return record.member_id(); }
  bool worker() const { return record.role() == v1::ROLE_WORKER; }
  bool connected() const { return connection != 0; }
  // Whether it may receive a rank.
  bool idle() const { return worker() && connected() && !place.has_value() && !excluded; }
  // Whether the member holds this rank.
  bool Holds(const v1::RankSlot& rank) const { return place && SamePlace(*place, rank); }
};

}  // namespace cadre
