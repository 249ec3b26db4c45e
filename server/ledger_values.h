// What the ledger (ledger.h) receives and returns.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
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

// Why a caller with this protocol is refused; nothing if it is compatible.
inline std::optional<Refused> WhyIncompatible(uint32_t protocol) {
  if (AreCompatible(protocol, kProtocol)) return std::nullopt;
  return Refused{v1::REFUSAL_PROTOCOL,
                 absl::StrCat("the caller has protocol ", protocol, ", this aggregator ", kProtocol,
                              "; only adjacent protocols work together")};
}
inline Refused Malformed(std::string reason) { return {v1::REFUSAL_MALFORMED, std::move(reason)}; }

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
  // The part of its change that is used.
  float scale = 1;
  std::vector<SourceSegment> segments;
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
  // Empty unless the order is screened.
  v1::ChangeSums changes = {};
};

// How to make version `round`: its value at every position that the round has exchanged is the sum
// over groups, in this order, of weight * value; the others are those of the version before. If
// the order has `restores`, all values and states are those of that version.
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
  // The statistics of the version that it restores, if it does.
  VersionStats restored;
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
// A result of BeginApply: the round requires the values of the version before, which were damaged.
struct LacksVersion {
  uint32_t version = 0;
};

using ApplyDecision =
    std::variant<ApplyPlan, AlreadyApplied, ApplyUnderWay, Incomplete, LacksVersion, Refused>;

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

}  // namespace cadre
