// The ledger decides for one aggregator which runs, contributions, rounds and pulls it accepts.
//
// A pure state machine: (state, event) -> decision. It performs no I/O, holds no lock and reads no
// clock; the caller makes data durable and reports that. Equal events in equal order give equal
// decisions. ShardHost (shard_host.h) and the simulator drive it.
//
//   opened = OpenRun(terms)                  make version 0 durable if requested, then
//                                            VersionDurable
//   key = KeyOf(run, group, generation)      the key with which the request of a rank must be
//                                            signed; then Stage or Pull
//   grant = Stage(header)                    then per chunk: CheckChunk, write, ChunkStored;
//                                            after the last: sync, ContributionDurable
//   plan = BeginApply(apply)                 write the mean of plan.groups, then VersionDurable
//                                            (or ApplyFailed); delete the contributions it returns
//   grant = Pull(request)                    serve the values from the file of the version
//
// Rules:
//   1. A contribution is identified by (run, round, group, generation, rank); once complete it
//      never changes.
//   2. Round r accepts only contributions computed from version r - 1, and none once version r
//      exists.
//   3. Only the coordinator (OpenRun, Fence) determines the generation (one membership of a group)
//      whose ranks may call. Older ones are stale and refused; a newer one is not known yet, and
//      its ranks try again later, because the coordinator's message may be on its way.
//   4. Apply takes exactly its participants, whose slices must cover what the round exchanges of
//      the shard (a fragment, or all of it) without gap or overlap; all other contributions to the
//      round are dropped and never applied. Repeated for a version that exists, it must name the
//      participants of which the version was made.
//   5. A complete contribution of a fenced generation is kept until its round is published: the
//      coordinator may have committed it before the generation ended.
//   6. A version exists only once it is durable. The newest, the one before, and those that the
//      order of the newest names (Apply.keep) are kept.
//   7. A shard that has lost its files is hollow at a version h: it accepts contributions to round
//      h + 1 without the values of version h, and serves no pulls until an Apply has made version
//      h + 1. Values of a rank that are those of version h + 1 itself are a seed: a contribution
//      with a key of its own, which only an Apply with `seed` uses. An outer update, a code and
//      a round of a fragment need the values of version h, so in runs with any of them only a seed
//      can end this state, or the version itself, copied from another aggregator.
//   8. An order may make a version that is a copy of an older one (Apply.restores), with its
//   states.
//      It is a round like any other, so contributions that are based on versions after that one are
//      refused by rule 2.
//   9. A version that a numbered order has made (Apply.attempt) may be made again, of some of its
//      participants, by an order with a higher number, until it is published: by Publish, by an
//      OpenRun that names it, or by the order of the next round. Until then its contributions are
//      kept. Ranks and readers learn of a version from the coordinator when it is published.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/ledger_run.h"
#include "server/ledger_values.h"
#include "tensor/interval.h"

namespace cadre {

class Ledger {
 public:
  // --- Runs

  // Opens the run's shard. Idempotent. Refuses invalid terms, and terms that contradict the open
  // run of that lineage if it has a version after 0 (until then, the shard is reassigned). A run of
  // another lineage is replaced. Generations only increase. A shard that is hollow at another
  // version, or not hollow, discards what it holds if the terms are hollow.
  Decision<Opened> OpenRun(const RunTerms& terms);
  // Refuses contributions of generations of the group below `generation` from now on. Returns the
  // contributions to delete. An unknown run is ignored.
  std::vector<ContributionKey> Fence(const std::string& run, uint32_t group,
                                     const GroupGeneration& generation);
  // Ends the run: from then on only pulls are served. Returns the contributions to delete.
  std::vector<ContributionKey> CloseRun(const std::string& run);
  // The run's files are to be removed: until it is opened again, contributions are refused, and
  // those that are being staged are not acknowledged. Another lineage is ignored.
  void Leave(const std::string& run, const std::string& lineage);
  // The run's files are removed: it is not open.
  void Forget(const std::string& run) { runs_.erase(run); }
  // Restores the durable state of an earlier process. `versions` may be empty. Returns obsolete
  // contributions, to be deleted. Requires: the run is not open; OpenRun accepted the terms before.
  std::vector<ContributionKey> Restore(const RunTerms& terms, bool closed,
                                       const std::vector<StoredVersion>& versions,
                                       const std::vector<FoundContribution>& contributions);
  bool IsClosed(const std::string& run) const;
  // Elements of the versions and contributions that the run stores.
  int64_t StoredElements(const std::string& run) const;
  // The highest generation of which OpenRun or Fence has told.
  uint32_t HighestGeneration() const;
  // The interval that the shard stores.
  static Interval SpanOf(const RunTerms& terms);
  // Every run with a version, by name. `step` and `samples` are those of the order that made the
  // version; 0 if it is unknown.
  std::vector<v1::ShardState> States() const;
  // The version before the first one that a hollow shard will have.
  std::optional<uint32_t> HollowVersion(const std::string& run) const {
    const LedgerRun* const found = Find(run);
    return found == nullptr ? std::nullopt : found->hollow;
  }
  // The stored versions before the newest.
  google::protobuf::RepeatedPtrField<v1::KeptVersion> OlderVersions(const std::string& run) const;
  // Forgets the versions that are not kept any more (rule 6) and returns them, to be removed.
  std::vector<uint32_t> ForgetObsolete(const std::string& run);
  // Fills in the newest version of the run and, until it is published, the one before.
  void Report(const std::string& run, v1::RunReport& report) const;

  // --- Contributions

  // The key with which requests of ranks of this generation must be signed; the caller checks it.
  Decision<SecretKey> KeyOf(const std::string& run, uint32_t group, uint32_t generation) const;
  Decision<StageGrant> Stage(const v1::ContributionHeader& header);
  // Checks whether the chunk may be written; does not change the state. `crc_fits`: the caller's
  // check of the CRC.
  std::optional<Refused> CheckChunk(const ContributionKey& key, uint64_t attempt, uint32_t index,
                                    int64_t bytes, bool crc_fits) const;
  // The next chunk was written. Returns whether it was the last.
  bool ChunkStored(const ContributionKey& key, uint64_t attempt);
  // All chunks are durable; Apply may now use the contribution. `frame`: of a frame, else null.
  // Returns false if the contribution was dropped or belongs to another stream.
  bool ContributionDurable(const ContributionKey& key, uint64_t attempt,
                           std::shared_ptr<const FrameIndex> frame = nullptr);
  // Why: the round was closed without it meanwhile, its generation has ended, or there is a newer
  // stream.
  Refused WhyDropped(const ContributionKey& key) const;
  // The chunks could not be made durable: unless they were before, the contribution must be staged
  // again, also by a later stream, because it has resumed after the chunks that are lost. Returns
  // it for deletion.
  std::vector<ContributionKey> SyncFailed(const ContributionKey& key);
  // The contribution on disk is damaged: it counts as not staged and may be staged again.
  void ContributionLost(const ContributionKey& key);

  // --- Rounds

  ApplyDecision BeginApply(const v1::Apply& apply);
  // The version could not be written; the round accepts its participants again.
  void ApplyFailed(const std::string& run, uint32_t round);
  // The version requested by OpenRun or BeginApply is durable (any other is ignored). Returns the
  // contributions to delete.
  std::vector<ContributionKey> VersionDurable(const std::string& run, uint32_t version,
                                              const VersionStats& stats);
  // The run's versions up to this one are not made again. Returns the contributions to delete.
  std::vector<ContributionKey> Publish(const std::string& run, uint32_t version);
  // The newest version, if an order may still make it again.
  std::optional<StoredVersion> Unpublished(const std::string& run) const {
    const LedgerRun* const found = Find(run);
    return found == nullptr || found->published ? std::nullopt : found->current;
  }
  // Whether the shard is hollow at the version before: it may continue from a copy of this one.
  bool AwaitsVersion(const std::string& run, uint32_t version) const;
  // The shard has a copy of the version that it awaits. Returns the contributions to delete.
  // Requires: AwaitsVersion.
  std::vector<ContributionKey> AddCopied(const std::string& run, const StoredVersion& version);
  PullDecision Pull(const v1::PullRequest& request) const;

 private:
  // Null if the run is not open.
  LedgerRun* Find(const std::string& run);
  const LedgerRun* Find(const std::string& run) const;
  // The contribution that this attempt stages; null if it was dropped or superseded.
  Contribution* Find(const ContributionKey& key, uint64_t attempt);

  std::map<std::string, LedgerRun> runs_;
  uint64_t attempts_ = 0;
};

}  // namespace cadre
