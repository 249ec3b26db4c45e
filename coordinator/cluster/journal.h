// The time and the actions of one call of the state machine, and what the coordinator stores about
// itself: numbers that are never reused, counters, and events.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/events/event_log.h"
#include "coordinator/events/events.h"
#include "coordinator/events/options.h"
#include "coordinator/events/outbox.h"
#include "proto/cadre/v1/history.pb.h"
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

// Generations after the highest that aggregators report, at the least: a lost store may have given
// out more. The time is added, because a coordinator that runs with another store may have had the
// same report.
inline constexpr uint32_t kUnknownGenerations = 1'000'000;

// Ids of runs that a start with a backup leaves out: those of runs that were submitted since.
inline constexpr uint32_t kBackupRuns = 1000;

class Journal {
 public:
  // Borrows `options`, which must outlive the object.
  explicit Journal(const CoordinatorOptions& options)
      : options_(options), event_log_(options.keep_events) {}

  // ---- The call
  // Starts a call at `now`, which never decreases.
  void Begin(absl::Time now);
  absl::Time now() const { return now_; }
  // When the first call began.
  absl::Time started() const { return started_; }
  Outbox& out() { return out_; }
  std::vector<Action> Take();

  // ---- Counters and numbers
  // Starts an epoch, `epoch` or a higher one, with the record of the store. Requires: Begin was
  // called.
  void Restore(const v1::MetaRecord& meta, uint64_t epoch);
  const v1::MetaRecord& meta() const { return meta_; }
  uint32_t NewGeneration();
  uint32_t NewRun();
  uint32_t NewMember();
  // The record of an ended run is removed.
  void NoteRemovedRun(uint32_t run);
  // Generations up to this one are in use elsewhere, and kUnknownGenerations may be.
  void SkipGenerations(uint32_t highest);
  // Numbers of runs up to this one are in use elsewhere.
  void SkipRuns(uint32_t highest);
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
  // Adds an event of the cluster as a whole, of a run, or of one of its groups.
  void Report(v1::EventKind kind, absl::string_view text);
  void ReportRun(v1::EventKind kind, absl::string_view run, absl::string_view text);
  void ReportGroup(v1::EventKind kind, const v1::RankSlot& group, absl::string_view text);
  void Report(v1::ClusterEvent event) { event_log_.Add(std::move(event), now_, out_); }

  // A limit of the process, for the status; empty: there is room again.
  void SetLimitReached(const std::string& limit);
  const std::string& limit_reached() const { return limit_reached_; }

 private:
  // The generation after a gap that depends on the time.
  uint32_t After(uint32_t generation, uint32_t gap) const;

  const CoordinatorOptions& options_;
  absl::Time now_ = absl::InfinitePast();
  absl::Time started_ = absl::InfinitePast();
  Outbox out_;
  v1::MetaRecord meta_;
  bool meta_changed_ = false;
  EventLog event_log_;
  std::string limit_reached_;
};

}  // namespace cadre
