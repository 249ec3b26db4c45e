// What one aggregator decides: its runs, their rounds, and every contribution to them.
//
// A pure machine: (state, event) -> decision. It does no I/O, holds no lock, reads no clock; the
// caller makes things durable and says so, and equal events in equal order give equal decisions.
// An aggregator (shard_host.h) drives it, and so can a simulator.
//
//   opened = OpenRun(terms)                  make version 0 durable if asked, then VersionDurable
//   grant = Stage(header)                    then per chunk: CheckChunk, write, ChunkStored;
//                                            after the last: sync, ContributionDurable
//   plan = BeginApply(apply)                 write the mean of plan.groups, then VersionDurable
//                                            (or ApplyFailed); delete the contributions it returns
//   grant = Pull(request)                    serve it from the version's file
//
// The rules that it keeps:
//   - a contribution belongs to (run, round, group, generation, rank); once whole it never changes;
//   - round r takes only contributions computed from version r - 1, and none once version r exists;
//   - a group's generation below the lowest known is stale, a newer one fences the older ones;
//   - Apply takes exactly its participants, whose slices must cover the shard's span without gap or
//     overlap; everything else staged for the round is dropped and never applied;
//   - a whole contribution of a fenced generation is kept until its round is applied: the
//     coordinator may have committed it before the generation ended;
//   - versions exist only once they are durable; the newest and the one before are kept.
//
// Thread-compatible.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/client/shard_span.h"
#include "server/decision.h"
#include "server/slices.h"
#include "server/spread.h"

namespace cadre {

// What OpenRun fixes about a run.
struct RunTerms {
  std::string run;
  std::string lineage;
  uint32_t shard = 0;
  uint32_t shards = 1;
  // Group slots, and the most ranks that a group has.
  uint32_t groups = 1;
  uint32_t ranks = 1;
  // Flat position of every tensor, then the number of parameters: one entry more than tensors.
  std::vector<uint64_t> tensor_begin;
  // Positions of what is averaged but not trained (running statistics of batch norm), in order.
  std::vector<FlatSpan> statistics;
  // Lowest generation accepted, by group.
  std::map<uint32_t, uint32_t> generations;
};

struct ContributionKey {
  std::string run;
  uint32_t round = 0;
  uint32_t group = 0;
  uint32_t generation = 0;
  uint32_t rank = 0;

  static ContributionKey Of(const v1::ContributionHeader& header);
  auto operator<=>(const ContributionKey&) const = default;
  // "round 3 of run-1, group 0, generation 7, rank 1".
  std::string ToString() const;
};

// The shard is open.
struct Opened {
  // No version is here yet: make version 0 durable.
  bool make_version_zero = false;
  // The lineage that the run id had here before: its files are not this run's.
  std::optional<std::string> replaces_lineage;
  FlatSpan span;
  // Contributions that are of no use any more: delete them.
  std::vector<ContributionKey> dropped;
};

// Leave to stage the chunks from `next_chunk` on.
struct StageGrant {
  ContributionKey key;
  // Tells streams for one key apart: the newest one counts.
  uint64_t attempt = 0;
  // Whether the contribution begins anew (its file too).
  bool fresh = false;
  uint32_t next_chunk = 0;
  uint32_t chunks = 0;
  uint64_t elements = 0;
  // Partial contributions of older generations: delete them.
  std::vector<ContributionKey> dropped;
};

// Elements `span` of the model lie in contribution `key` from element `offset` on.
struct SourceSegment {
  ContributionKey key;
  FlatSpan span;
  uint64_t offset = 0;
};

// One group's model, its segments in flat order.
struct GroupSource {
  uint32_t group = 0;
  // samples / total, rounded once; exactly 1 for a single participant.
  float weight = 0;
  std::vector<SourceSegment> segments;
};

// Make version `round`: for every position the sum over groups, in this order, of weight * value.
struct ApplyPlan {
  std::string run;
  uint32_t round = 0;
  FlatSpan span;
  std::vector<GroupSource> groups;
  // As in RunTerms: these say nothing about how far the groups lie apart.
  std::vector<FlatSpan> statistics;
};

// What is known of a version since it was made.
struct VersionFigures {
  uint64_t digest = 0;
  // Of the groups that it is the mean of.
  Spread spread;
};

// Version `round` exists already.
struct AlreadyApplied {
  VersionFigures figures;
};
// It is being made.
struct ApplyUnderWay {};

using ApplyDecision = std::variant<ApplyPlan, AlreadyApplied, ApplyUnderWay, Refused>;

// Leave to read `spans`, in this order, from the file of `version`.
struct PullGrant {
  std::string run;
  uint32_t version = 0;
  std::vector<FlatSpan> spans;
  uint64_t elements = 0;
};

// The version asked for is not, or no longer, here.
struct NoSuchVersion {
  uint32_t asked = 0;
  uint32_t current = 0;
};

using PullDecision = std::variant<PullGrant, NoSuchVersion, Refused>;

// What was found on disk after a restart.
struct FoundVersion {
  uint32_t version = 0;
  VersionFigures figures;
};
struct FoundContribution {
  v1::ContributionHeader header;
  uint32_t whole_chunks = 0;
};

class Ledger {
 public:
  // --- Runs

  // Idempotent. Refuses terms that make no sense, or that contradict the open run of that lineage
  // once it has a version of its own (before, the shard begins anew); another lineage replaces the
  // run. Generations only rise.
  Decision<Opened> OpenRun(const RunTerms& terms);
  // The run is over: pulls only. Returns the contributions to delete.
  std::vector<ContributionKey> CloseRun(const std::string& run);
  // Puts back what a process before this one had made durable. `versions` may be empty. Returns the
  // contributions that are of no use any more: delete them.
  // Requires: the run is not open; terms were accepted before.
  std::vector<ContributionKey> Restore(const RunTerms& terms, bool closed,
                                       const std::vector<FoundVersion>& versions,
                                       const std::vector<FoundContribution>& contributions);
  // Every run with a version, by name.
  std::vector<v1::ShardState> States() const;

  // --- Contributions

  Decision<StageGrant> Stage(const v1::ContributionHeader& header);
  // Whether the chunk may be written; nothing changes. `crc_fits`: what the caller computed.
  std::optional<Refused> CheckChunk(const ContributionKey& key, uint64_t attempt, uint32_t index,
                                    uint64_t bytes, bool crc_fits) const;
  // The chunk after those stored before was written. True: it was the last.
  bool ChunkStored(const ContributionKey& key, uint64_t attempt);
  // All chunks are on disk for good; from now on Apply may take it. False: the contribution is gone
  // or another stream has it.
  bool ContributionDurable(const ContributionKey& key, uint64_t attempt);
  // What was on disk is damaged: it counts as never staged, and may be staged again.
  void ContributionLost(const ContributionKey& key);

  // --- Rounds

  ApplyDecision BeginApply(const v1::Apply& apply);
  // The version could not be written; the round is open again to its participants.
  void ApplyFailed(const std::string& run, uint32_t round);
  // The version that OpenRun or BeginApply asked for is on disk (any other is ignored). Returns the
  // contributions to delete.
  std::vector<ContributionKey> VersionDurable(const std::string& run, uint32_t version,
                                              const VersionFigures& figures);
  PullDecision Pull(const v1::PullRequest& request) const;

 private:
  struct Contribution {
    v1::ContributionHeader header;
    // Flat spans in the header's order.
    std::vector<FlatSpan> spans;
    uint64_t elements = 0;
    uint32_t chunks = 0;
    uint32_t stored_chunks = 0;
    bool durable = false;
    uint64_t attempt = 0;
  };
  struct Version {
    uint32_t number = 0;
    VersionFigures figures;
  };
  struct Run {
    RunTerms terms;
    FlatSpan span;
    bool closed = false;
    std::optional<Version> current;
    std::optional<Version> previous;
    // Round that an Apply has named, and its (group, generation) pairs: none other may come in.
    uint32_t closing_round = 0;
    std::set<std::pair<uint32_t, uint32_t>> closing;
    bool applying = false;
    std::map<ContributionKey, Contribution> contributions;
  };

  const Run* Find(const std::string& run) const;
  // Checks of a header against its run, each returning the refusal if there is one.
  static std::optional<Refused> CheckIdentity(const Run& run, const v1::ContributionHeader& header);
  static std::optional<Refused> CheckRound(const Run& run, const v1::ContributionHeader& header);
  static Decision<Contribution> Lay(const Run& run, const v1::ContributionHeader& header);
  static std::vector<ContributionKey> Fence(Run& run, uint32_t group, uint32_t generation);
  static std::variant<GroupSource, std::string> Cover(const Run& run, uint32_t round,
                                                      const v1::Participant& participant);

  std::map<std::string, Run> runs_;
  uint64_t attempts_ = 0;
};

}  // namespace cadre
