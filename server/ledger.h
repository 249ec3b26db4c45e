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
//   5. A complete contribution of a fenced generation is kept until its round is applied: the
//      coordinator may have committed it before the generation ended.
//   6. A version exists only once it is durable; the newest and the one before are kept.
//   7. A shard that has lost its files is hollow at a version h: it accepts contributions to round
//      h + 1 without the values of version h, and serves no pulls until an Apply has made version
//      h + 1. Values of a rank that are those of version h + 1 itself are a seed: a contribution
//      with a key of its own, which only an Apply with `seed` uses. An outer update, a code and
//      a round of a fragment need the values of version h, so in runs with any of them only a seed
//      can end this state.
//
// Thread-compatible.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/secret_key.h"
#include "model/exchange_units.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/frame_index.h"
#include "server/mean.h"
#include "tensor/interval.h"

namespace cadre {

// A refusal with its reason. REFUSAL_UNSPECIFIED: not now; the caller tries again.
struct Refused {
  v1::Refusal refusal = v1::REFUSAL_UNSPECIFIED;
  std::string reason;
};

// The result of a check: a value, or a refusal.
template <typename T>
using Decision = std::variant<T, Refused>;

// What the coordinator has told about the newest generation of a group.
struct GroupGeneration {
  uint32_t number = 0;
  // Nothing while the generation does not exist: the number is then a lower bound.
  std::optional<SecretKey> key;
};

// The properties of a run that OpenRun sets.
struct RunTerms {
  std::string run;
  std::string lineage;
  uint32_t shard = 0;
  uint32_t shards = 1;
  // Maximum of ranks per group.
  uint32_t ranks = 1;
  // Position of every tensor in the parameter order (all elements of all parameters in one fixed
  // order), then the number of elements: one entry more than there are tensors.
  std::vector<int64_t> tensor_begin;
  // Positions that are averaged but not trained (running statistics of batch normalisation), in
  // order.
  std::vector<Interval> statistics;
  // By group; a group that is not in it has no generation. The number of groups may change during
  // the run: only the coordinator knows it and chooses among the contributions.
  std::map<uint32_t, GroupGeneration> generations;
  // States that are stored for each value of a version (model/averaging_state.h).
  int outer_states = 0;
  // The units of the model, if ranks and shards exchange whole units: the shards are then cut at
  // their borders.
  std::shared_ptr<const ExchangeUnits> units;
  // How contributions that are frames are coded, and how the frames of versions are.
  std::optional<v1::Coding> up;
  std::optional<v1::Coding> down;
  // Number of fragments; 1: rounds exchange the whole model.
  uint32_t fragments = 1;
  // Newest version of the run.
  uint32_t version = 0;
  // The shard discards its versions and becomes hollow at this version.
  std::optional<uint32_t> hollow;
};

struct ContributionKey {
  std::string run;
  uint32_t round = 0;
  uint32_t group = 0;
  uint32_t generation = 0;
  uint32_t rank = 0;
  bool seed = false;

  static ContributionKey Of(const v1::ContributionHeader& header);
  auto operator<=>(const ContributionKey&) const = default;
  // Text such as "round 3 of run-1, group 0, generation 7, rank 1".
  std::string ToString() const;
};

// The result of OpenRun: the shard is open.
struct Opened {
  // Whether version 0 must be made durable, because no version exists yet.
  bool make_version_zero = false;
  // The version at which the shard is hollow.
  std::optional<uint32_t> hollow;
  // Versions to discard, the newest last.
  std::vector<uint32_t> discarded;
  // Whether the run had another shard here, or another model, until now: its version 0 is obsolete.
  bool reassigned = false;
  // Earlier lineage (id of a model's history) of the same run id; its files belong to another run.
  std::optional<std::string> replaces_lineage;
  Interval span;
  // Obsolete contributions, to be deleted.
  std::vector<ContributionKey> dropped;
};

// Permission to stage the chunks from `next_chunk` on.
struct StageGrant {
  ContributionKey key;
  // Identifies the stream among those that stage this contribution: only the newest may write.
  uint64_t attempt = 0;
  // Whether the contribution starts from the beginning, with a new file.
  bool fresh = false;
  uint32_t next_chunk = 0;
  uint32_t chunks = 0;
  int64_t elements = 0;
  // If the contribution is a frame: its coding, the units of the model, its intervals and the
  // interval of the shard.
  std::optional<v1::Coding> coding;
  std::shared_ptr<const ExchangeUnits> units;
  uint32_t fragments = 1;
  std::vector<Interval> spans;
  Interval shard;
};

// States that the values at positions `span` of the model are in contribution `key`, from its
// element `offset` on. If contributions are frames, the offset has no meaning, and the segments of
// a contribution are in the order of positions.
struct SourceSegment {
  ContributionKey key;
  Interval span;
  int64_t offset = 0;
  // The index of a frame that this process has received, else null.
  std::shared_ptr<const FrameIndex> frame = nullptr;
};

// One group's model as segments of its contributions, in the order of positions.
struct GroupSource {
  uint32_t group = 0;
  // samples / total, rounded once; exactly 1 for a single participant.
  float weight = 0;
  std::vector<SourceSegment> segments;
};

// How to make version `round`: its value at every position that the round has exchanged is the sum
// over groups, in this order, of weight * value; the others are those of the version before.
struct ApplyPlan {
  std::string run;
  uint32_t round = 0;
  Interval span;
  // What the round has exchanged of the span, in order.
  std::vector<Interval> exchanged;
  std::vector<GroupSource> groups;
  // Positions that are averaged but not trained (see RunTerms); excluded from the discrepancy.
  std::vector<Interval> statistics;
  // As in RunTerms.
  std::shared_ptr<const ExchangeUnits> units;
  uint32_t fragments = 1;
  // The order that the plan executes, to be stored with the version.
  v1::Apply order;
};

// Values computed when a version was made.
struct VersionStats {
  uint64_t digest = 0;
  // Discrepancy of the groups that the version averages.
  DiscrepancyTerms discrepancy;
  // The sums of the outer update; nothing without one.
  std::optional<v1::OuterSums> outer = std::nullopt;
  // Nothing unless versions are coded.
  std::optional<v1::ResidualSums> residual = std::nullopt;
};

// A result of BeginApply: version `round` exists already.
struct AlreadyApplied {
  VersionStats stats;
};
// A result of BeginApply: version `round` is being made.
struct ApplyUnderWay {};
// A result of BeginApply: contributions of these groups are not complete. The round stays closed to
// other groups; the same Apply may succeed later.
struct Incomplete {
  std::vector<uint32_t> groups;
  std::string reason;
};

using ApplyDecision = std::variant<ApplyPlan, AlreadyApplied, ApplyUnderWay, Incomplete, Refused>;

// Permission to read `spans`, in this order, from the file of `version`, or what its frame has of
// them.
struct PullGrant {
  std::string run;
  uint32_t version = 0;
  std::vector<Interval> spans;
  int64_t elements = 0;
  // Null if the run has none.
  std::shared_ptr<const ExchangeUnits> units;
  uint32_t fragments = 1;
};

// A result of Pull: the requested version is not stored yet, or not any more.
struct NoSuchVersion {
  uint32_t requested = 0;
  uint32_t current = 0;
};

using PullDecision = std::variant<PullGrant, NoSuchVersion, Refused>;

// A durable version.
struct StoredVersion {
  uint32_t version = 0;
  VersionStats stats;
  // The order of which the version was made. Empty for version 0 and in files of older builds.
  v1::Apply order;
};
// A contribution found on disk after a restart.
struct FoundContribution {
  v1::ContributionHeader header;
  uint32_t whole_chunks = 0;
};

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
  // The order that made the newest version of the run; empty if there is none.
  v1::Apply NewestOrder(const std::string& run) const;

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
  PullDecision Pull(const v1::PullRequest& request) const;

 private:
  struct Contribution {
    v1::ContributionHeader header;
    // In the header's order, and the number of their positions.
    std::vector<Interval> spans;
    int64_t positions = 0;
    // Elements that are transferred: values, or those of a frame.
    int64_t elements = 0;
    uint32_t chunks = 0;
    uint32_t stored_chunks = 0;
    bool durable = false;
    uint64_t attempt = 0;
    std::shared_ptr<const FrameIndex> frame;
  };
  struct Run {
    RunTerms terms;
    Interval span;
    bool closed = false;
    std::optional<StoredVersion> current;
    std::optional<StoredVersion> previous;
    // Only without `current`.
    std::optional<uint32_t> hollow;
    // The last Apply; contributions of others to its round are refused.
    v1::Apply closing;
    bool applying = false;
    std::map<ContributionKey, Contribution> contributions;
  };

  // The version that the next round follows, stored or hollow; nothing before version 0.
  static std::optional<uint32_t> NewestOf(const Run& run);
  // Null if the run is not open.
  Run* Find(const std::string& run);
  const Run* Find(const std::string& run) const { return const_cast<Ledger*>(this)->Find(run); }
  // The contribution that this attempt stages; null if it was dropped or superseded.
  Contribution* Find(const ContributionKey& key, uint64_t attempt);
  // Each of these checks one aspect of a header against its run and returns the refusal, if any.
  static std::optional<Refused> CheckIdentity(const Run& run, const v1::ContributionHeader& header);
  static std::optional<Refused> CheckRound(const Run& run, const v1::ContributionHeader& header);
  static std::optional<Refused> CheckRoom(const Run& run, const ContributionKey& key,
                                          const Contribution& contribution);
  static std::optional<Refused> CheckFrame(const Run& run, const Contribution& contribution);
  static std::optional<Refused> CheckFragment(const Run& run, const Contribution& contribution);
  // What a round exchanges of the shard.
  static std::vector<Interval> ExchangedOf(const Run& run, uint32_t fragment);
  static Decision<Contribution> MapRanges(const Run& run, const v1::ContributionHeader& header);
  static std::optional<Refused> CheckGeneration(const Run& run, uint32_t group,
                                                uint32_t generation);
  static std::vector<ContributionKey> Fence(Run& run, uint32_t group,
                                            const GroupGeneration& generation);
  // Removes contributions that satisfy the condition; returns their keys.
  static std::vector<ContributionKey> DropIf(
      Run& run, const std::function<bool(const ContributionKey&, const Contribution&)>& condition);
  static std::variant<GroupSource, Incomplete, Refused> CoverShard(
      const Run& run, const v1::Apply& apply, const v1::Participant& participant);

  std::map<std::string, Run> runs_;
  uint64_t attempts_ = 0;
};

}  // namespace cadre
