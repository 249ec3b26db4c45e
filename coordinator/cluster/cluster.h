// The cluster as one event of the state machine sees it: the members with their leases, streams and
// standing, and the journal of the call.
//
// Cluster answers Hello with Welcome or a refusal. What the loss of a member means for its group is
// decided by its Run. Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/journal.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/programs.h"
#include "coordinator/cluster/run_queue.h"
#include "coordinator/cluster/standing.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// For this time, a host on which a worker was lost or has failed counts as a host of the cluster,
// because it may return.
inline constexpr absl::Duration kReturn = absl::Minutes(10);

class Cluster : public Journal {
 public:
  // Borrows `options`, which must outlive the object.
  explicit Cluster(const CoordinatorOptions& options)
      : Journal(options),
        options_(options),
        members_(options.lease),
        programs_(members_),
        queue_(members_) {}

  // ---- Members
  Membership& members() { return members_; }
  const Membership& members() const { return members_; }

  struct Joined {
    Member* member = nullptr;
    // Whether the member was registered before.
    bool known = false;
    // Earlier processes of a restarted worker. The caller removes them before Welcome.
    std::vector<std::string> replaced;
  };
  // Whether the epoch is not lower than that of the member. If it is lower, the stream ends; the
  // coordinator begins again above it, unless it has been replaced.
  bool HasEpochOf(ConnectionId connection, const v1::Hello& hello);
  // Registers the member; the caller calls Welcome. Empty if Hello was refused.
  std::optional<Joined> OnHello(ConnectionId connection, const v1::Hello& hello);
  void Welcome(Member& member, ConnectionId connection);
  void OnHeartbeat(Member& member, const v1::Heartbeat& heartbeat);
  // What the order waits for, in one sentence.
  static std::string DelayText(const Member& aggregator, const v1::DelayedOrder& delayed);
  // Sends the reason, counts the refusal and ends the stream; the member, if any, keeps its lease.
  void Refuse(ConnectionId connection, v1::Refusal refusal, absl::string_view reason);
  // The stream has ended.
  void Close(ConnectionId connection);
  // Ids of members whose streams have ended since the last call.
  std::vector<std::string> TakeClosed() { return std::exchange(closed_, {}); }
  // The messages of members that were refused since the last call.
  struct RefusedMessage {
    std::string member_id;
    std::string reason;
  };
  std::vector<RefusedMessage> TakeRefused() { return std::exchange(refused_, {}); }
  Programs& programs() { return programs_; }
  const Programs& programs() const { return programs_; }
  // Stores why the program of this rank cannot continue.
  void SetProgramEnded(Member& member, const std::string& reason);
  // Removes the member, ends its stream, and returns it; empty if it is unknown.
  std::optional<Member> Remove(const std::string& member_id, absl::string_view reason);
  // A worker of the host was lost: the host may return.
  void NoteLost(const std::string& host);
  // When a worker of each of these hosts was lost, if that is less than kReturn ago.
  const std::map<std::string, absl::Time>& lost_hosts() const { return lost_hosts_; }
  // Whether a worker that the store does not name may still join: for a lease after the first
  // member has joined, since it may have been lost before, or have joined after the store was
  // copied.
  bool AwaitsUnknownHost() const {
    return meta().starts() > 1 && now() < members_.first_contact() + options_.lease;
  }

  // ---- Messages; dropped if the member has no stream
  void SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message);
  // `state`: that of the run, if it is known.
  void SendRelease(absl::string_view member_id, const v1::RankSlot& place, absl::string_view reason,
                   v1::RunState state);

  // ---- Standing of workers and hosts
  Standings& standings() { return standings_; }
  const Standings& standings() const { return standings_; }
  static Standings::Worker WorkerOf(const Member& member) {
    return {member.record.host(), member.record.name()};
  }
  // Returns the answer.
  Replied OnCordonMembers(const CordonMembers& cordon);
  // Lets the worker count as idle only while it is available.
  void UpdateIdle(Member& member);
  // Stores changed standings, and does the same for all workers if there are any or the time has
  // come.
  void UpdateIdle();
  // When UpdateIdle has work without an event.
  absl::Time NextAvailable() const { return available_at_; }
  // ", 2 are excluded ..." if connected workers may not receive a rank.
  std::string ExcludedWorkers() const;

  // ---- Idle workers
  // Workers with the fewest failures and doubts first, then oldest first, but with the workers of
  // one host adjacent.
  std::vector<std::string> IdleByHost() const;
  // Number of idle workers by which a group may grow.
  size_t CountTrusted(v1::Cluster::Device kind, v1::RunSpec::Precision precision) const;
  RunQueue& queue() { return queue_; }
  const RunQueue& queue() const { return queue_; }

 private:
  // `member`: the aggregator; null if none of this name is registered.
  Replied CordonAggregator(const CordonMembers& cordon, const Member* member);
  void RecordDelayedOrders(Member& member, const v1::Heartbeat& heartbeat);
  Member& AddMember(const v1::Hello& hello);
  // Updates the member's record from Hello.
  void Update(Member& member, const v1::Hello& hello);
  // Orders the worker to leave if its process is drained.
  void SendDrain(const Member& member);
  void ReportMember(v1::EventKind kind, const Member& member, absl::string_view text);
  // Adds the refusals counted by a process that ends to the coordinator's counters.
  void KeepCounters(Member& member);

  const CoordinatorOptions& options_;
  Membership members_;
  Programs programs_;
  Standings standings_;
  std::map<std::string, absl::Time> lost_hosts_;
  // Members that were welcomed in this epoch: names of aggregators and incarnations of workers.
  std::set<std::pair<v1::Role, std::string>> welcomed_;
  // The epoch of the coordinator that has replaced this one; 0: there is none.
  uint64_t replaced_by_ = 0;
  // The earliest end of an exclusion.
  absl::Time available_at_ = absl::InfinitePast();
  std::vector<std::string> closed_;
  std::vector<RefusedMessage> refused_;
  RunQueue queue_;
};

}  // namespace cadre
