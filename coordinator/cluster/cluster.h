// The cluster as one event of the state machine sees it: the members with their leases and
// streams, the counters, numbers that are never reused, and the actions of the call.
//
// Cluster answers Hello with Welcome or a refusal. What the loss of a member means for its group is
// decided by its Run. Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/cluster/programs.h"
#include "coordinator/cluster/standing.h"
#include "coordinator/events/event_log.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/events/outbox.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Generations that a start of the coordinator leaves out, at the least: another coordinator, which
// was started earlier and still runs with a copy of the store, may assign them. Up to as many are
// added, depending on the time, because the other one may be started again with its copy.
inline constexpr uint32_t kGenerationGap = 100'000;

// The same for a start with a backup, at the least: the coordinator that made it has assigned more
// since, and left out a gap at each of its starts. The time is added, because another backup of the
// same coordinator may have been used before.
inline constexpr uint32_t kBackupGap = 10'000'000;

// Ids of runs that a start with a backup leaves out: those of runs that were submitted since.
inline constexpr uint32_t kBackupRuns = 1000;

// For this time, a host on which a worker was lost or has failed counts as a host of the cluster,
// because it may return.
inline constexpr absl::Duration kReturn = absl::Minutes(10);

class Cluster {
 public:
  explicit Cluster(const CoordinatorOptions& options)
      : options_(options),
        members_(options.lease),
        programs_(members_),
        event_log_(options.keep_events) {}

  // ---- The call
  // Starts a call at `now`, which never decreases.
  void Begin(absl::Time now);
  absl::Time now() const { return now_; }
  Outbox& out() { return out_; }
  std::vector<Action> Take();

  // ---- Counters and numbers
  // Starts an epoch with the record of the store. Requires: Begin was called.
  void Restore(const v1::MetaRecord& meta);
  const v1::MetaRecord& meta() const { return meta_; }
  uint32_t NewGeneration();
  uint32_t NewRun();
  // The record of an ended run is removed.
  void NoteRemovedRun(uint32_t run);
  // Numbers up to these are in use elsewhere.
  void SkipNumbers(uint32_t generation, uint32_t run);
  // Secret of a generation, 16 bytes; the same after a restart.
  std::string KeyOf(uint32_t generation) const;
  void Count(absl::string_view name, uint64_t amount = 1);
  void CountRefusal(v1::Refusal refusal);

  // ---- Events for people
  // Requires: called in the order of keys, before Restore. Errors: DataLoss.
  absl::Status LoadEvent(const std::string& key, const std::string& bytes) {
    return event_log_.Load(key, bytes);
  }
  const EventLog& event_log() const { return event_log_; }
  // Adds an event of the cluster as a whole, of a run, of one of its groups, or of a member.
  void Report(v1::EventKind kind, absl::string_view text);
  void ReportRun(v1::EventKind kind, absl::string_view run, absl::string_view text);
  void ReportGroup(v1::EventKind kind, const v1::RankSlot& group, absl::string_view text);
  void ReportMember(v1::EventKind kind, const Member& member, absl::string_view text);

  // A limit of the process, for the status; empty: there is room again.
  void SetLimitReached(const std::string& limit);

  // ---- Members
  Membership& members() { return members_; }
  const Membership& members() const { return members_; }

  struct Joined {
    Member* member = nullptr;
    // Whether the member was registered before.
    bool known = false;
    bool address_changed = false;
    // Earlier processes of a restarted worker. The caller removes them before Welcome.
    std::vector<std::string> replaced;
  };
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
  // Whether a worker that the store does not name may still join: as long after a start as a lease,
  // since it may have been lost before, or have joined after the store was copied.
  bool AwaitsUnknownHost() const { return meta_.starts() > 1 && now_ < started_ + options_.lease; }

  // ---- Messages; dropped if the member has no stream
  void SendTo(absl::string_view member_id, const v1::CoordinatorMessage& message);
  // `state`: that of the run, if it is known.
  void SendRelease(absl::string_view member_id, const v1::RankSlot& place, absl::string_view reason,
                   v1::RunState state);

  // ---- Standing of workers and hosts
  Standings& standings() { return standings_; }
  static Standings::Worker WorkerOf(const Member& member) {
    return {member.record.host(), member.record.name()};
  }
  void OnCordonMembers(const CordonMembers& cordon);
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
  // What a live run waits for: `slots` groups of `ranks` workers of one kind (unspecified: any).
  struct Demand {
    v1::Cluster::Device device = v1::Cluster::DEVICE_UNSPECIFIED;
    uint32_t ranks = 0;
    size_t slots = 0;
  };
  void SetDemand(uint32_t run, const Demand& demand);
  // Workers of this kind that the run and the runs before it wait for.
  size_t DemandUpTo(uint32_t run, v1::Cluster::Device kind) const;
  // Whether the run or a run before it waits for workers.
  bool AnyDemandUpTo(uint32_t run) const {
    return !demands_.empty() && demands_.begin()->first <= run;
  }

  // ---- Status
  void FillStatus(absl::Time now, v1::StatusReply& reply) const;
  v1::MemberStatus StatusOf(const Member& member, absl::Time now) const;

 private:
  void RecordDelayedOrders(Member& member, const v1::Heartbeat& heartbeat);
  Member& AddMember(const v1::Hello& hello);
  // Updates the member's record from Hello.
  void Update(Member& member, const v1::Hello& hello);
  // Orders the worker to leave if its process is drained.
  void SendDrain(const Member& member);
  // Adds the refusals counted by a process that ends to the coordinator's counters.
  void KeepCounters(Member& member);

  const CoordinatorOptions& options_;
  absl::Time now_ = absl::InfinitePast();
  absl::Time started_ = absl::InfinitePast();
  Outbox out_;
  v1::MetaRecord meta_;
  bool meta_changed_ = false;
  Membership members_;
  Programs programs_;
  EventLog event_log_;
  Standings standings_;
  std::map<std::string, absl::Time> lost_hosts_;
  std::string limit_reached_;
  // The earliest end of an exclusion.
  absl::Time available_at_ = absl::InfiniteFuture();
  std::vector<std::string> closed_;
  std::vector<RefusedMessage> refused_;
  // Runs without waiting slots are absent.
  std::map<uint32_t, Demand> demands_;
};

}  // namespace cadre
