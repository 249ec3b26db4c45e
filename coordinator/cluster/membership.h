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
  // is cordoned or quarantined.
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
  // Whether the member holds this rank.
  bool Holds(const v1::RankSlot& rank) const { return place && SamePlace(*place, rank); }
};

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
  // Disconnected workers of this name and host: earlier processes of a restarted worker.
  std::vector<std::string> Predecessors(const v1::Hello& hello) const;

  using Ids = std::set<std::string, MemberIdLess>;
  // Connected workers without a rank that may receive one, oldest first, and their number by kind
  // of device.
  const Ids& idle() const { return idle_; }
  size_t CountIdle(v1::Cluster::Device kind) const;
  // Number of workers of this kind that support the precision and are not withdrawn, whether they
  // have ranks or not; and of those that hold a rank of the run. Ranks of programs do not count.
  size_t CountWorkers(v1::Cluster::Device kind, v1::RunSpec::Precision precision) const;
  size_t CountPlacedIn(absl::string_view run, v1::Cluster::Device kind) const;
  // Counts the changes of the set of idle workers.
  uint64_t idle_changes() const { return idle_changes_; }
  // Number of workers on the host that hold a rank, and of idle ones.
  int CountPlaced(const std::string& host) const { return CountOf(placed_on_, host); }
  int CountIdleOn(const std::string& host) const { return CountOf(idle_on_, host); }
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
  // Changes the numbers of workers by kind and run by one, up or down.
  void CountWorker(const Member& member, bool add);
  static int CountOf(const std::map<std::string, int>& hosts, const std::string& host) {
    const auto found = hosts.find(host);
    return found == hosts.end() ? 0 : found->second;
  }
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
  // workers, and the numbers of idle and of placed workers.
  std::set<std::pair<absl::Time, std::string>> leases_;
  std::set<std::pair<absl::Time, ConnectionId>> overdue_;
  std::map<std::string, Ids> by_key_;
  Ids idle_;
  std::map<v1::Cluster::Device, size_t> idle_of_kind_;
  std::map<std::pair<v1::Cluster::Device, v1::RunSpec::Precision>, size_t> workers_of_;
  std::map<std::pair<std::string, v1::Cluster::Device>, size_t> placed_in_;
  std::map<std::string, int> placed_on_;
  std::map<std::string, int> idle_on_;
  Ids aggregators_;
  uint64_t idle_changes_ = 0;
  std::set<std::string> changed_programs_;
};

}  // namespace cadre
