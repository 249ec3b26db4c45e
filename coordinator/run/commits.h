// The newest commits of one run: of its newest version, of the older ones that the aggregators
// keep, and the commit that is being applied.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/kept_versions.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class Commits {
 public:
  // Restores the commit of `version` (the run's newest), of an older one, or of the next one, which
  // is being applied.
  void Load(const v1::CommitRecord& commit, uint32_t version);

  // The commit of the newest version; for version 0, the digests of the initial model. Empty until
  // the shards are open.
  const std::optional<v1::CommitRecord>& newest() const { return newest_; }
  // The commit that is being applied.
  const std::optional<v1::CommitRecord>& closing() const { return closing_; }

  // Starts to apply a commit, and fills in what its version includes of the groups; its digests are
  // filled in as the shards apply it.
  void Begin(v1::CommitRecord commit, int shards);
  // Records that a shard has applied the closing commit. Returns false for a duplicate. Requires:
  // closing().
  bool Apply(const v1::Applied& applied);
  // The closing commit is to be made again, without contributions of which all is left out, and
  // with others clipped. `fill` fills in what follows from the participants, of which there may be
  // none. Requires: applied().
  void Screen(const std::vector<v1::ScreenedChange>& screened,
              absl::FunctionRef<void(v1::CommitRecord&)> fill);
  // Forgets that a shard has applied the closing commit. Requires: closing().
  void Revoke(uint32_t shard);
  // Whether all shards have applied the closing commit. Requires: closing().
  bool applied() const;
  // The closing commit becomes the newest, with its digest; commits of versions that it does not
  // keep are forgotten. Requires: applied().
  const v1::CommitRecord& Finish();
  // Version 0 has these digests.
  const v1::CommitRecord& SetInitial(v1::CommitRecord commit);
  // The run has ended: nothing is applied any more.
  void Abandon() { closing_.reset(); }

  // The group's newest contribution that the newest version includes; null: it includes none.
  const v1::IncludedContribution* IncludedOf(uint32_t group) const;
  // Whether the newest version includes the contribution of this generation to `round`.
  bool Includes(uint32_t group, uint32_t generation, uint32_t round) const;
  // The group's newest contribution that was screened, up to the newest version or the closing one;
  // null: none was.
  const v1::ScreenedChange* ScreenedOf(uint32_t group) const;
  // Whether all of the contribution of this generation to `round` was left out by the screen.
  bool LeavesOut(uint32_t group, uint32_t generation, uint32_t round) const;
  // Whether this generation of the group contributed to the closing commit.
  bool InClosing(uint32_t group, uint32_t generation) const;
  // The commit of the newest version, or of an older one that is kept; null if there is none.
  const v1::CommitRecord* Find(uint32_t version) const;
  // Digest of such a version.
  std::optional<uint64_t> DigestOf(uint32_t version) const;
  // The versions before the newest that the commit of the next one keeps (Apply.keep): those of the
  // policy, unless a rollback has left them, and the oldest of those that groups load.
  std::vector<uint32_t> KeptBy(const v1::CommitRecord& next, const KeptVersions& policy,
                               const std::set<uint32_t>& loaded) const;
  // Digest of the shard in the newest version.
  std::optional<uint64_t> ShardDigest(uint32_t shard) const;
  // Whether the shard has the digest that it has in that version, which is the newest or the
  // closing one; true if none is known yet.
  bool Agrees(const v1::Applied& applied) const;
  // Whether the shard has applied the closing round, and has its version now with another digest.
  bool Contradicts(const v1::RunOpened& opened) const;

 private:
  // Fills in what the closing commit includes of the groups.
  void NameIncluded();

  std::optional<v1::CommitRecord> newest_;
  std::optional<v1::CommitRecord> closing_;
  // Those before the newest, by version.
  std::map<uint32_t, v1::CommitRecord> older_;
};

// The attempt for the closing commit that the shard has applied. Aggregators of older builds do not
// name it: they make the first one.
uint32_t AttemptOf(const v1::Applied& applied, const v1::CommitRecord& closing);

// Digest of the shard in the version.
std::optional<uint64_t> DigestOf(const v1::CommitRecord& commit, uint32_t shard);
// Whether the version remains when the commit has been applied.
bool Keeps(const v1::CommitRecord& commit, uint32_t version);

// ---- The discrepancy between the groups at averaging (the share of noise in what they learned),
// as stored in the record of the run.

// Adds a commit that became the run's newest version. Rounds of one group, rounds for which a shard
// has no values, and rounds without displacement of the mean add nothing.
void CountDiscrepancy(const v1::CommitRecord& commit, v1::RunRecord& run);

// ---- The outer optimizer

// Records the sums of the newest round.
void RecordOuter(const v1::CommitRecord& commit, v1::RunRecord& run);
v1::OuterStatus OuterStatusOf(const v1::RunRecord& run);

// ---- Coded versions

// Adds up the shards of a commit with coded versions.
void RecordResidual(const v1::CommitRecord& commit, v1::RunRecord& run);
// As in v1::RunStatus.
double ResidualRatioOf(const v1::RunRecord& run);

// The discrepancy as the status shows it. Requires: run.has_discrepancy().
v1::Discrepancy DiscrepancyStatus(const v1::RunRecord& run);

}  // namespace cadre
