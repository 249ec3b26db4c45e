// Everything that the coordinator knows of one run: its durable records and what it has learnt
// since it started.
//
// A value owned by the machine; thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/groups.h"
#include "coordinator/round.h"
#include "coordinator/run.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

struct Job {
  Job(const v1::RunRecord& run, absl::Time now);

  const std::string& id() const { return record.run(); }
  const v1::RunSpec& spec() const { return record.spec(); }
  bool live() const { return IsLive(record.state()); }
  bool averages() const { return Averages(record.spec()); }
  // A round is closed and the shards are applying it.
  bool committing() const { return closing.has_value(); }
  // All shards are open on connected aggregators, or the run needs none.
  bool shards_open() const;
  // Groups with a started generation, in order.
  std::vector<uint32_t> LiveGroups() const;
  // Whether the newest commit holds a contribution of this generation of the group.
  bool InLastCommit(uint32_t group) const;
  bool InClosing(uint32_t group) const;
  // Digest of a shard's part of the newest version.
  std::optional<uint64_t> ShardDigestOf(uint32_t shard) const;

  v1::RunRecord record;
  std::vector<Slot> slots;
  Round round;
  // The commit that made the newest version (of round 0: digests of the initial model); empty until
  // the shards are open.
  std::optional<v1::CommitRecord> last;
  // The commit that is being applied.
  std::optional<v1::CommitRecord> closing;
  // What each shard said when its stream's OpenRun was answered.
  std::map<uint32_t, v1::RunOpened> opened;
  // The version before the newest, for groups that report late what they hold.
  uint32_t previous_version = 0;
  uint64_t previous_digest = 0;
  bool previous_known = false;
  // When the first group stood prepared while none has started yet.
  absl::Time barrier_since = absl::InfiniteFuture();
};

// What commit shards say of themselves, added up.
uint64_t SumOfDigests(const v1::CommitRecord& commit);

}  // namespace cadre
