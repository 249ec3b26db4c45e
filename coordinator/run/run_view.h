// What a run shows of its state: to its own parts, each of which changes only its own fields, and
// to the state machine. A Run is a view of its parts.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/events/options.h"
#include "coordinator/run/aggregators.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/group_planner.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_evaluation.h"
#include "coordinator/run/run_rounds.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stale_record.h"
#include "coordinator/run/stored_run.h"
#include "coordinator/store/keys.h"
#include "model/opaque.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// What a run uses of the rest of the coordinator: members, messages, records, counters and the time
// of the call; plans; limits. Borrowed.
struct RunContext {
  Cluster& cluster;
  GroupPlanner& planner;
  const CoordinatorOptions& options;
};

class RunView {
 public:
  RunView(const RunView&) = delete;
  RunView& operator=(const RunView&) = delete;

  const v1::RunRecord& record() const { return parts_.stored.record(); }
  const std::string& id() const { return record().run(); }
  const v1::RunSpec& spec() const { return record().spec(); }
  uint32_t number() const { return RunNumber(id()); }
  const Slots& slots() const { return parts_.slots; }
  const Round& round() const { return parts_.rounds.round(); }
  const Commits& commits() const { return parts_.rounds.commits(); }
  const Shards& shards() const { return parts_.aggregators.shards(); }
  const History& history() const { return parts_.history; }

  bool live() const { return IsLive(record().state()); }
  bool parked() const { return record().state() == v1::RUN_STATE_PARKED; }
  // Whether its record is older than the values on its aggregators.
  bool behind() const { return live() && parts_.stale.known(); }
  // Whether it forms groups and uses its shards.
  bool active() const { return live() && !parked() && !behind(); }
  // Whether the run waits for workers or aggregators.
  bool waits() const { return active() && (!slots().waiting().empty() || chooses_shards()); }
  bool has_started() const { return record().version() > 0 || !slots().started().empty(); }
  bool averages() const { return Averages(spec()); }
  bool chooses_shards() const { return averages() && record().state() == v1::RUN_STATE_QUEUED; }
  // Whether the shards are applying a closed round.
  bool committing() const { return commits().closing().has_value(); }
  // Whether all shards are open on connected aggregators, or the run has none.
  bool shards_open() const {
    return !averages() || (shards().AllOpen() && commits().newest().has_value());
  }
  // Whether prepared groups wait for one that has read the data: programs need not know it, but the
  // length of the run depends on it.
  bool awaits_data() const {
    return record().train_samples() == 0 && spec().stop().steps() == 0 &&
           !slots().prepared().empty();
  }
  // Whether the group's current generation contributed to the newest commit.
  bool InNewest(const Slot& slot) const {
    return commits().InNewest(slot.group(), slot.record().generation());
  }
  // Whether the round has the values of one group, with which the run begins.
  bool TakesFirstValues(uint32_t round) const {
    return round == 1 && BeginsWithGroupValues(spec());
  }
  // Whether the reservation names this run, by its id or its name.
  bool IsReserved(const v1::Reservation& reservation) const {
    return reservation.run() == id() || reservation.run() == spec().name();
  }
  // Whether the state that an aggregator has shows that the record is older.
  bool IsLater(absl::string_view aggregator, const v1::ShardState& shard) const {
    if (!live() || !averages() || !shards().MayStore(aggregator, shard.shard())) return false;
    // A run is closed, or a round applied, only after the store has recorded it.
    return shard.closed() || shard.version() > record().version() + (committing() ? 1 : 0);
  }

  // ---- Messages
  v1::CoordinatorMessage RunEnded(bool done, absl::string_view reason) const;
  v1::CoordinatorMessage CloseRun() const;

  // ---- Status (run_status.cc)
  v1::RunStatus Status(absl::Time now) const;
  // `details`: also the plan, and what every rank holds.
  v1::GroupStatus StatusOf(const Slot& slot, bool details) const;
  // Adds the shards that the aggregator stores for this run.
  void FillShards(const Member& aggregator, v1::AggregatorStatus& status) const;
  // Empty: the run waits for nothing.
  std::string WaitReason() const;
  // What the run waits for besides workers, for a program that has joined; empty if that is nothing
  // that is known. Unlike the status, it takes no time that grows with the number of workers.
  std::string WaitReasonForPrograms() const { return WaitReasonBesideWorkers().value_or(""); }

 protected:
  struct Parts {
    const StoredRun& stored;
    const History& history;
    const Slots& slots;
    const RunEvaluation& evaluation;
    const RunRounds& rounds;
    const Aggregators& aggregators;
    const StaleRecord& stale;
  };
  RunView(const RunContext& context, const Parts& parts)
      : cluster_(context.cluster),
        planner_(context.planner),
        options_(context.options),
        parts_(parts) {}

 private:
  // nullopt: only workers are missing.
  std::optional<std::string> WaitReasonBesideWorkers() const;
  std::string MissingWorkers() const;
  // Programs for this run that lack ranks; empty if there are none.
  std::string IncompletePrograms() const;
  std::string MissingNativeWorkers() const;

  const Cluster& cluster_;
  const GroupPlanner& planner_;
  const CoordinatorOptions& options_;
  const Parts parts_;
  // Parameters of the model, once a status was computed.
  mutable std::optional<uint64_t> parameters_;
};

}  // namespace cadre
