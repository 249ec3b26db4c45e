// What a run shows of its state to its own parts, each of which changes only its own fields.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/run/commits.h"
#include "coordinator/run/history.h"
#include "coordinator/run/round.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/shards.h"
#include "coordinator/run/slots.h"
#include "coordinator/run/stored_run.h"
#include "coordinator/store/keys.h"
#include "model/opaque.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class RunView {
 public:
  RunView(const RunView&) = delete;
  RunView& operator=(const RunView&) = delete;

  const v1::RunRecord& record() const { return stored_.record(); }
  const std::string& id() const { return record().run(); }
  const v1::RunSpec& spec() const { return record().spec(); }
  uint32_t number() const { return RunNumber(id()); }
  const Slots& slots() const { return slots_; }
  // Owned by the parts.
  virtual const Round& round() const = 0;
  virtual const Commits& commits() const = 0;
  virtual const Shards& shards() const = 0;
  const History& history() const { return history_; }
  // As in StoredRun.
  std::string RemovalText() const { return stored_.RemovalText(); }
  // Number of parameters of the model; 0: not known.
  virtual uint64_t Parameters() const = 0;

  bool live() const { return IsLive(record().state()); }
  bool parked() const { return record().state() == v1::RUN_STATE_PARKED; }
  // Whether its record is older than the values on its aggregators.
  virtual bool behind() const = 0;
  // Whether it forms groups and uses its shards.
  bool active() const { return live() && !parked() && !behind(); }
  // Whether the run waits for workers or aggregators.
  bool waits() const { return active() && (!slots().waiting().empty() || chooses_shards()); }
  bool has_started() const { return record().version() > 0 || !slots().started().empty(); }
  bool averages() const { return Averages(spec()); }
  // Whether the group is not formed since a rollback.
  bool LeavesOut(uint32_t group) const { return absl::c_linear_search(record().left_out(), group); }
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
  // Whether the newest version includes the contribution of the group's current generation to
  // `round`.
  bool Includes(const Slot& slot, uint32_t round) const {
    return commits().Includes(slot.group(), slot.record().generation(), round);
  }
  // Whether the round has the values of one group, with which the run begins.
  bool TakesFirstValues(uint32_t round) const {
    return round == 1 && BeginsWithGroupValues(spec());
  }
  // Whether the reservation names this run, by its id or its name. Neither is empty.
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

 protected:
  RunView(const StoredRun& stored, const History& history, const Slots& slots)
      : stored_(stored), history_(history), slots_(slots) {}
  ~RunView() = default;

 private:
  const StoredRun& stored_;
  const History& history_;
  const Slots& slots_;
};

}  // namespace cadre
