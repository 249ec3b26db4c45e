// The state of one run: its durable records and what was received since the coordinator started.
//
// A value owned by the machine; thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/round.h"
#include "coordinator/run_rules.h"
#include "coordinator/slot.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

struct Run {
  Run(const v1::RunRecord& run, absl::Time now);

  const std::string& id() const { return record.run(); }
  const v1::RunSpec& spec() const { return record.spec(); }
  bool live() const { return IsLive(record.state()); }
  bool averages() const { return Averages(record.spec()); }
  // Whether the shards are applying a closed round.
  bool committing() const { return closing.has_value(); }
  // Whether all shards are open on connected aggregators, or the run has none.
  bool shards_open() const;
  // Groups with a started generation, in group order.
  std::vector<uint32_t> LiveGroups() const;
  // Whether the group's current generation contributed to the newest commit, or to the closing one.
  bool InLastCommit(uint32_t group) const;
  bool InClosing(uint32_t group) const;
  // Digest of the shard in the newest version.
  std::optional<uint64_t> ShardDigestOf(uint32_t shard) const;

  v1::RunRecord record;
  std::vector<Slot> slots;
  Round round;
  // The commit of the newest version; for version 0, the digests of the initial model. Empty until
  // the shards are open.
  std::optional<v1::CommitRecord> last;
  // The commit that is being applied.
  std::optional<v1::CommitRecord> closing;
  // Each shard's answer to OpenRun on the current stream of its aggregator.
  std::map<uint32_t, v1::RunOpened> opened;
  // The version before the newest, for groups that report their version late.
  uint32_t previous_version = 0;
  uint64_t previous_digest = 0;
  bool previous_known = false;
  // When the first group was prepared, while none has started.
  absl::Time barrier_since = absl::InfiniteFuture();
};

// Sum of the digests of all shards: the digest of the version.
uint64_t SumOfDigests(const v1::CommitRecord& commit);

// ---- The discrepancy between the groups at averaging (the share of noise in what they learned),
// as stored in the record of the run.

// Adds a commit that became the run's newest version. Rounds of one group, rounds for which a shard
// has no values, and rounds without displacement of the mean add nothing.
void CountDiscrepancy(const v1::CommitRecord& commit, v1::RunRecord& run);

// The discrepancy as the status shows it. Requires: run.has_discrepancy().
v1::Discrepancy DiscrepancyStatus(const v1::RunRecord& run);

}  // namespace cadre
