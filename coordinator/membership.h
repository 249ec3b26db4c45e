// Who belongs to the cluster: members, their leases and their streams.
//
// A member's lease is granted when it joins and renewed by everything it says. Its stream may break
// and another may take its place within the lease; at most one stream is a member's at a time.
// What a dropped member means for its group is not decided here.
//
// Pure and thread-compatible: time comes in as `now`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Orders "w2" before "w10": by age, as ids end in a counter.
struct MemberIdLess {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
};

struct Member {
  v1::MemberRecord record;
  // 0 while no stream is open.
  ConnectionId connection = 0;
  absl::Time heard;
  absl::Time lease_until;
  // Of its host, as it said in its last Hello; 0: not known.
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  // From its last heartbeat.
  std::map<std::string, uint64_t> counters;
  // Worker: its place in a group; none while it is idle.
  std::optional<v1::GroupPlace> place;

  const std::string& id() const { return record.member_id(); }
  bool worker() const { return record.role() == v1::ROLE_WORKER; }
};

class Membership {
 public:
  explicit Membership(absl::Duration lease) : lease_(lease) {}

  // A stream that has yet to say Hello; it has one lease's time for that.
  void Greet(ConnectionId connection, absl::Time now);
  bool Greeting(ConnectionId connection) const { return greeting_.count(connection) != 0; }

  // Adds a member (its id must be new) and grants its lease.
  Member& Add(const v1::MemberRecord& record, absl::Time now);
  void Remove(const std::string& member_id);

  // Makes the stream the member's. Returns the stream that it takes the place of, or 0.
  ConnectionId Attach(Member& member, ConnectionId connection, absl::Time now);
  // The stream is over. Returns the member whose stream it was, or null.
  Member* Detach(ConnectionId connection);
  // The member has said something.
  void Renew(Member& member, absl::Time now);

  Member* Find(absl::string_view member_id);
  const Member* Find(absl::string_view member_id) const;
  Member* ByConnection(ConnectionId connection);
  Member* ByIncarnation(v1::Role role, absl::string_view incarnation);
  Member* Aggregator(absl::string_view name);
  const Member* Aggregator(absl::string_view name) const;
  // Workers of this name and host without a stream: what a restarted process leaves behind.
  std::vector<std::string> Predecessors(const v1::Hello& hello) const;

  // Members whose lease is over, and streams that never said Hello, oldest id first.
  std::vector<std::string> Expired(absl::Time now) const;
  std::vector<ConnectionId> Mute(absl::Time now) const;
  // When the next of them will be.
  absl::Time NextExpiry() const;

  using Map = std::map<std::string, Member, MemberIdLess>;
  const Map& all() const { return members_; }

 private:
  const absl::Duration lease_;
  Map members_;
  std::map<ConnectionId, std::string> connections_;
  std::map<ConnectionId, absl::Time> greeting_;
};

}  // namespace cadre
