// Members of the cluster, their leases and their streams.
//
// A member's lease is granted when it joins and renewed by every message. Its stream may break and
// be replaced within the lease; a member has at most one stream at a time. What the loss of a
// member means for its group is decided elsewhere.
//
// If several members have joined, streams are open, and no message was received for half of a
// lease, the coordinator itself is cut off: leases do not end, and the next message of any member
// extends all of them by the silence.
//
// Pure and thread-compatible: time is the argument `now`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/member.h"
#include "coordinator/cluster/worker_counts.h"
#include "coordinator/events/events.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Membership {
 public:
  explicit Membership(absl::Duration lease) : lease_(lease) {}

  // Adds a stream from which no Hello was received yet. Hello must arrive within the time of one
  // lease.
  void AddPending(ConnectionId connection, absl::Time now);
  bool IsPending(ConnectionId connection) const { return pending_.count(connection) != 0; }

  // Adds a member (its id must be new) and grants its lease.
  Member& Add(const v1::MemberRecord& record, absl::Time now);
  // Replaces the record. Requires: the same id and role.
  void Update(Member& member, const v1::MemberRecord& record);
  void Remove(const std::string& member_id);

  // The members are those of an earlier process. Their leases begin when the first of them joins
  // this one: they may need time to find it.
  void AwaitFirstContact() { awaits_contact_ = true; }
  // Assigns the stream to the member. Returns the stream that it replaces, or 0.
  ConnectionId Attach(Member& member, ConnectionId connection, absl::Time now);
  // The stream has ended. Returns the member whose stream it was, or null.
  Member* Detach(ConnectionId connection);
  // Renews the lease: a message of the member was received.
  void Renew(Member& member, absl::Time now);
  // Extends all leases, and the times for Hello. A lease is extended three times at most until a
  // message of its member is received.
  void Extend(absl::Duration length);
  // Gives the worker a rank, or makes it idle.
  void Place(Member& member, std::optional<v1::RankSlot> place);
  // Decides whether the worker counts as idle while it has no rank, and as one that may be used at
  // all. `withdrawn` implies `excluded`.
  void Exclude(Member& member, bool excluded, bool withdrawn);

  Member* Find(absl::string_view member_id);
  const Member* Find(absl::string_view member_id) const;
  Member* ByConnection(ConnectionId connection);
  Member* ByIncarnation(v1::Role role, absl::string_view incarnation);
  Member* Aggregator(absl::string_view name);
  const Member* Aggregator(absl::string_view name) const;
  // Null if it has no stream.
  const Member* ConnectedAggregator(absl::string_view name) const;
  // Disconnected workers of this name and host: earlier processes of a restarted worker.
  std::vector<std::string> Predecessors(const v1::Hello& hello) const;

  using Ids = std::set<std::string, MemberIdLess>;
  // Connected workers without a rank that may receive one, oldest first.
  const Ids& idle() const { return idle_; }
  // Numbers of workers, idle ones and others.
  const WorkerCounts& counts() const { return counts_; }
  // Counts the changes of the set of idle workers.
  uint64_t idle_changes() const { return idle_changes_; }
  // Ids of the ranks of a program (v1::Reservation).
  const Ids& RanksOf(const std::string& program) const;
  // Programs of which a member has been added, changed or removed since the last call.
  std::set<std::string> TakeChangedPrograms() { return std::exchange(changed_programs_, {}); }
  // Ids of the aggregators.
  const Ids& aggregators() const { return aggregators_; }

  // Members whose lease has expired, and streams whose Hello is overdue, oldest id first.
  std::vector<std::string> Expired(absl::Time now) const;
  std::vector<ConnectionId> WithoutHello(absl::Time now) const;
  // The next time at which one of them returns something.
  absl::Time NextExpiry() const;

  using Map = std::map<std::string, Member, MemberIdLess>;
  const Map& all() const { return members_; }

  // Whether no member has sent anything for so long that the coordinator rather than they must be
  // cut off: also until the first contact.
  bool IsCutOff(absl::Time now) const;
  // When the first member joined this process; InfiniteFuture: none has.
  absl::Time first_contact() const { return first_contact_; }

 private:
  // Adds the member to all indexes, or removes it. Every change of a member's record, stream or
  // rank lies between Unindex and Index.
  void Index(const Member& member);
  void Unindex(const Member& member);
  void NoteChange(const Member& member);
  // Oldest member with this key; null if there is none.
  const Member* FirstOf(const std::string& key) const;

  // Grants new leases to all members.
  void BeginLeases(absl::Time now);

  const absl::Duration lease_;
  bool awaits_contact_ = false;
  absl::Time first_contact_ = absl::InfiniteFuture();
  // When a message of any member was received last.
  absl::Time last_heard_ = absl::InfinitePast();
  Map members_;
  std::map<ConnectionId, std::string> connections_;
  std::map<ConnectionId, absl::Time> pending_;
  // The indexes: deadlines of leases and Hellos, members by the keys of membership.cc, idle
  // workers, and numbers of workers.
  std::set<std::pair<absl::Time, std::string>> leases_;
  std::set<std::pair<absl::Time, ConnectionId>> overdue_;
  std::map<std::string, Ids> by_key_;
  Ids idle_;
  WorkerCounts counts_;
  Ids aggregators_;
  uint64_t idle_changes_ = 0;
  std::set<std::string> changed_programs_;
};

}  // namespace cadre
