// The record of failures of every worker and host, and what follows from it for new work.
//
// A failure excludes a worker for a time that doubles with each further failure; after several of
// them it is quarantined until an operator clears its record or a long time has passed. A success
// (a commit with a contribution of its group) erases its record and that of its host. A host is
// excluded in the same way once two of its workers have failed for a cause that may lie in the
// host.
//
//   cause               whose          effect
//   DATA, DATA_DIFFERS, the worker's   excludes the worker; counts for its host as well
//     CHECKPOINT
//   MEMORY, DEVICE,     the worker's   excludes the worker
//     PLAN, DIGEST,
//     CLAIM, STALLED,
//     PEER
//   LEASE               the host's     workers without a record are preferred; the second and
//                                      later ones delay the worker for at most 30 s, as one that
//                                      joins again can be reached
//   AGGREGATOR          no worker's    not recorded here
//   DIVERGED            the run's, or  other workers are preferred (Doubt)
//                       a host's
//
// A worker is identified by host and name, and not by its member id, so that a restarted process
// does not begin with a clean record.
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
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// ---- Records of failures (also those of slots).

inline constexpr absl::Duration kFirstWait = absl::Seconds(1);
inline constexpr absl::Duration kMaxWait = absl::Minutes(5);
// Failures after which a worker or host is quarantined, and for how long.
inline constexpr uint32_t kQuarantineAfter = 5;
inline constexpr absl::Duration kQuarantine = absl::Hours(1);

void AddFailure(v1::FailureCause cause, absl::string_view reason, absl::Time now,
                v1::FailureRecord& record);

// The wait after `failures` failures in a row: kFirstWait, doubled by each, at most kMaxWait.
absl::Duration WaitAfter(uint32_t failures);

// Whether the cause lies in the worker that reports it.
bool IsOfSender(v1::FailureCause cause);
// Whether another worker with the same inputs would fail as well, if the cause is not its host.
bool IsPermanent(v1::FailureCause cause);

class Standings {
 public:
  struct Worker {
    std::string host;
    std::string name;
  };

  // Restores a record of the store.
  void Load(const v1::StandingRecord& record);

  void Fail(const Worker& worker, v1::FailureCause cause, absl::string_view reason, absl::Time now);
  void Succeed(const Worker& worker);
  // Clears the records whose newest failure has this cause: it lay in their run.
  void Forgive(v1::FailureCause cause);
  // Excludes a worker, or (with an empty name) all workers of a host, until Clear.
  void Cordon(const Worker& worker);
  // Cordons the worker; this process of it is to leave, and to end before `until` (the infinite
  // future: by its own limit).
  void Drain(const Worker& worker, absl::string_view incarnation, absl::Time until);
  // The limit that was given if this process is to leave.
  std::optional<absl::Time> DrainedUntil(const Worker& worker, absl::string_view incarnation) const;
  // Ends a cordon and erases the failures.
  void Clear(const Worker& worker);
  // Prefers other workers to this one until `until`, without a record; repeated doubts add up.
  void Doubt(const Worker& worker, absl::Time now, absl::Time until);

  // From when the worker may receive new work: InfinitePast if nothing is recorded, InfiniteFuture
  // while it or its host is cordoned.
  absl::Time AvailableAt(const Worker& worker) const;
  // Failures and doubts of the worker, and failures of its host; workers with fewer are preferred.
  uint32_t CountMarks(const Worker& worker, absl::Time now) const;
  // Whether a group may be interrupted to grow by this worker: it failed long ago, or only its
  // lease ended.
  bool IsTrusted(const Worker& worker, absl::Time now) const;
  bool IsCordoned(const Worker& worker) const;

  // Whether nothing speaks against any worker.
  bool empty() const { return records_.empty() && doubts_.empty(); }
  // All records by host and name; a host's record, whose name is empty, precedes its workers'.
  using Key = std::pair<std::string, std::string>;
  const std::map<Key, v1::StandingRecord>& records() const { return records_; }
  // The record as the status shows it.
  static v1::Standing StatusOf(const v1::StandingRecord& record, absl::Time now);

  // Keys whose records have changed since the last call; a key without a record is erased.
  std::set<Key> TakeChanged() { return std::exchange(changed_, {}); }

 private:
  struct Doubts {
    uint32_t count = 0;
    absl::Time until = absl::InfinitePast();
  };

  static absl::Time AvailableAt(const v1::StandingRecord& record);
  const v1::StandingRecord* Find(const Key& key) const;
  v1::StandingRecord& Change(const Key& key);
  void Erase(const Key& key);
  // Clears the failures of the record, if there is one.
  void ClearFailures(const Key& key);

  std::map<Key, v1::StandingRecord> records_;
  std::map<Key, Doubts> doubts_;
  std::set<Key> changed_;
};

}  // namespace cadre
