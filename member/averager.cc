// Values travel between the model and the shards in one of three forms. Ranks that own few
// intervals of the parameter order exchange what they own. With codes, with fragments, or with many
// intervals, each rank exchanges one contiguous part (Regroup moves the values inside the group),
// unless it is alone and owns whole units anyway. A device may code the contributions of its part
// itself (ContributionCoder); the weights then do not pass through host memory.
//
// Vaults. The optimizer's states at a contribution are kept in a vault under the version that its
// round makes, so that the next generation of the group starts from whichever version it gets. What
// is carried over to the next contribution depends on whether the version includes this one: until
// the group knows, another vault has the change and what its code has left out. The group learns it
// from the decision or, if its generation ends before, the next one from Start.included. So every
// change is in the model once, or in what is carried. A late change stays in the vault as it was
// contributed, and its positions have the number of that round as their count: each generation that
// starts with it weights it by how late it is by then, however many generations have ended. What
// codes have left out of a contribution that is in the model is not late; its count is 0.
//
// Ranks copy the contents of their vaults to one another when they contribute. A rank that is alone
// has no peer, and what it has is lost with its process in any case. Until its generation ends, its
// residuals are in the exchange alone, and its states are copied when it adopts a version.
#include "member/averager.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "model/averaging_state.h"
#include "model/coding.h"
#include "plan/exchange_memory.h"
#include "server/client/refusal.h"

namespace cadre {
namespace {

// Whether the snapshot has the change of its own round, and not only what is carried.
bool HasChange(const StateVault::Snapshot& snapshot) {
  return absl::c_any_of(snapshot.positions, [&](const UpdateCount& each) {
    return each.updates > 0 && each.updates == snapshot.version;
  });
}

// The share of values with this count, for a group that continues from `version`.
KeptShare ShareOf(const v1::Averaging& averaging, const UpdateCount& kept, uint32_t version,
                  bool included, bool screened = false) {
  if (kept.updates == 0) return {.factor = 1};
  return KeptShareOf(averaging, static_cast<uint32_t>(kept.updates), version, included, screened);
}

// `values` as those of the exchanged positions.
std::vector<Owned> ExchangedIn(std::span<const Owned> exchanged, std::span<float> values) {
  std::vector<Owned> owned;
  for (const Owned& each : exchanged) {
    owned.push_back({each.positions, values.first(each.positions.size())});
    values = values.subspan(each.positions.size());
  }
  return owned;
}

// The exchanged positions, with these counts, which are in order, and 0 for the others.
std::vector<UpdateCount> CountsOf(std::span<const Owned> exchanged,
                                  std::span<const UpdateCount> counted) {
  std::vector<UpdateCount> counts;
  auto next = counted.begin();
  for (const auto& [positions, values] : exchanged) {
    for (int64_t begin = positions.begin; begin < positions.end;) {
      if (next != counted.end() && next->positions.begin <= begin) {
        counts.push_back({{begin, std::min(positions.end, next->positions.end)}, next->updates});
      } else {
        const int64_t end = next == counted.end() ? positions.end : next->positions.begin;
        counts.push_back({{begin, std::min(positions.end, end)}, 0});
      }
      begin = counts.back().positions.end;
      while (next != counted.end() && next->positions.end <= begin) ++next;
    }
  }
  return counts;
}

}  // namespace

// If the ranks own many intervals, they exchange one contiguous part each, as with codes: a
// contribution has at most 65,536 ranges (server/ledger). Contributions are then coded on the host,
// because a device would need a copy for each interval.
absl::Status Averager::Prepare(GroupControl& control) {
  codes_up_ = CodingOf(averaging_.up()).has_value();
  exchanged_ = model_.owned();
  uint64_t intervals[] = {exchanged_.size()};
  CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(intervals)));
  const bool many = intervals[0] > kMaxOwnedIntervals;
  if (ExchangesUnits(averaging_) || many) {
    const ExchangeUnits units(model_.index());
    if (ExchangesUnits(averaging_)) units_ = units;
    part_.positions = units.PartOf(assignment_.place().rank(), group().size());
    const bool whole = absl::c_all_of(exchanged_, [&](const Owned& each) {
      return units.IsBorder(each.positions.begin) && units.IsBorder(each.positions.end);
    });
    if (!alone() || !whole || many) {
      part_values_.resize(part_.positions.size());
      part_.values = part_values_;
      CADRE_ASSIGN_OR_RETURN(regroup_, Regroup::Make(model_.owned(), part_.positions, group()));
      exchanged_ = std::span(&part_, 1);
    }
  }
  if (!many) CADRE_RETURN_IF_ERROR(MakeCoder());
  exchange_ = std::make_unique<ShardExchange>(
      *options_.runtime, assignment_, model_.index(), exchanged_, control, cancellation_, progress_,
      ShardExchange::Options{.silence = options_.exchange_silence,
                             .units = units_ ? &*units_ : nullptr,
                             .coder = coder_.get()});
  return absl::OkStatus();
}

// Merging needs the values on the host, so they are coded there, too.
absl::Status Averager::MakeCoder() {
  const int shards = assignment_.shards_size();
  if (shards == 0 || !CodesOnDevice(averaging_)) return absl::OkStatus();
  ContributionCoder::Layout layout{.part = part_.positions,
                                   .codec = CodecOf(*CodingOf(averaging_.up()))};
  for (int shard = 0; shard < shards; ++shard) {
    const Interval shared = Intersect(units_->PartOf(shard, shards), part_.positions);
    const auto units = shared.empty() ? std::span<const ExchangeUnit>() : units_->In(shared);
    layout.shards.emplace_back(units.begin(), units.end());
  }
  CADRE_ASSIGN_OR_RETURN(coder_, model_.MakeContributionCoder(std::move(layout)));
  return absl::OkStatus();
}

void Averager::AddMemory(v1::MemoryUse& memory) const {
  if (coder_ != nullptr) memory.set_buffers(memory.buffers() + coder_->device_bytes());
  memory.set_exchange(memory.exchange() + ExchangeBytes());
}

int64_t Averager::ExchangeBytes() const {
  if (!has_shards()) return 0;
  const int ranks = model_.group().size();
  int64_t bytes =
      exchange_->ExpectedBytes() + static_cast<int64_t>(part_values_.capacity() * sizeof(float));
  if (KeepsCarried()) {
    const ExchangedValues values{.elements = exchange_->elements(), .on_device = coder_ != nullptr};
    bytes += CarriedBytes(averaging_, values, ranks);
  }
  if (KeepsStates()) {
    int64_t states = 0;
    for (const std::vector<Owned>& tensor : model_.States().tensors) {
      for (const Owned& owned : tensor) states += owned.positions.size();
    }
    bytes += StateCopyBytes(averaging_, states, ranks);
  }
  return bytes;
}

Averager::~Averager() {
  if (exchange_ == nullptr) return;
  exchange_->Stop();
  if (states_round_ > 0) options_.states->Keep(states_round_, model_.States());
  if (carries_) KeepForNextGeneration();
}

bool Averager::KeepsStates() const {
  return options_.states != nullptr && has_shards() && model_.has_states();
}

bool Averager::KeepsCarried() const {
  return options_.residuals != nullptr && has_shards() && KeepsChanges(averaging_);
}

absl::Status Averager::GatherPart() {
  return regroup_ ? regroup_->ToPart(model_.owned(), part_values_) : absl::OkStatus();
}

absl::Status Averager::StorePart() {
  if (regroup_) CADRE_RETURN_IF_ERROR(regroup_->FromPart(part_values_, model_.owned()));
  return model_.Store(/*states=*/false);
}

absl::StatusOr<uint64_t> Averager::GroupDigest() {
  CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
  uint64_t digest[] = {0};
  for (const Owned& owned : model_.owned()) {
    digest[0] += Digest(owned.values, owned.positions.begin);
  }
  CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(digest)));
  return digest[0];
}

// ---- Contributions

absl::Status Averager::BeginStage(const RankProtocol::Stage& stage, uint32_t version) {
  if (!has_shards()) return absl::OkStatus();
  const bool coder_codes = coder_ != nullptr && !stage.initial;
  if (!coder_codes) {
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/KeepsStates()));
  } else if (KeepsStates()) {
    CADRE_RETURN_IF_ERROR(model_.FetchStates());
  }
  CADRE_RETURN_IF_ERROR(KeepStates(stage));
  const absl::Time begin = options_.runtime->clock().Now();
  CADRE_RETURN_IF_ERROR(coder_codes ? coder_->TakeChange() : GatherPart());
  if (stage.initial) {
    exchange_->BeginStageVersion(stage.round);
  } else {
    exchange_->BeginStage(stage.round, stage.samples, stage.fragment);
  }
  if (!coder_codes) return absl::OkStatus();
  transferred_ += options_.runtime->clock().Now() - begin;
  // While the frames are staged.
  return KeepStaged(version);
}

absl::Status Averager::KeepStates(const RankProtocol::Stage& stage) {
  if (!KeepsStates()) return absl::OkStatus();
  // Until the group adopts a version, nothing changes the states that the model has.
  if (alone() && !stage.background) {
    states_round_ = stage.round;
    return absl::OkStatus();
  }
  options_.states->Keep(stage.round, model_.States());
  return options_.states->Replicate(group());
}

absl::Status Averager::FinishStage(uint32_t version, Traffic* traffic) {
  if (exchange_->begun()) {
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    const absl::Status staged = exchange_->Finish(traffic);
    transferred_ += exchange_->duration();
    const bool late = RefusalOf(staged) == v1::REFUSAL_CLOSED_ROUND;
    if (!late) CADRE_RETURN_IF_ERROR(failure_.Blame(v1::FAILURE_CAUSE_AGGREGATOR, staged));
    progress_.Advance();
    if (late) counters_.Add("contributions_late");
    counters_.Add("staged_payload_bytes", traffic->payload_sent);
    counters_.Add("staged_message_bytes", traffic->message_sent);
  }
  return coder_ == nullptr ? KeepStaged(version) : absl::OkStatus();
}

// ---- Versions

absl::Status Averager::MakeInitial() {
  // One group alone continues with what the checkpoint has of the group that wrote it: each of
  // several would contribute it again. The shards read their states themselves; this rank only
  // compares their digests.
  std::vector<AveragingState> states;
  if (assignment_.place().group() == 0 && !assignment_.spec().checkpoint().from().empty()) {
    states = MakeStates();
  }
  // The weights of a new replica are those of the run's seed.
  CADRE_RETURN_IF_ERROR(model_.LoadCheckpoint(states, failure_));
  CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
  CADRE_RETURN_IF_ERROR(GatherPart());
  exchange_->AdoptInitial();
  if (coder_ != nullptr) CADRE_RETURN_IF_ERROR(coder_->Adopt());
  if (!states.empty() && states.front().name == kContributionResidual) {
    exchange_->SetCarried(std::move(state_values_.front()));
    // The next generation may start from a later version, which does not include it.
    if (KeepsCarried() && !CarriesAlone()) CADRE_RETURN_IF_ERROR(KeepCarried());
  }
  ForgetStates();
  has_version_ = true;
  return absl::OkStatus();
}

// A rank that has just begun has version 0, unless the run starts from a checkpoint, because the
// weights of a new replica are those of the run's seed. So the frames of all versions are enough
// for it, if the shards still keep them.
absl::Status Averager::OfferInitial() {
  const bool frames = CodingOf(averaging_.down()) && assignment_.spec().checkpoint().from().empty();
  if (!frames || has_version_ || !model_.has_initial_version()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
  CADRE_RETURN_IF_ERROR(GatherPart());
  exchange_->AdoptInitial();
  return absl::OkStatus();
}

absl::Status Averager::BeginPull(const RankProtocol::Pull& pull) {
  if (exchange_->begun()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(OfferInitial());
  // The version may be older than the round, after the coordinator has begun with an older store.
  carried_version_ = std::min(std::max(carried_version_, kept_round_), pull.version);
  exchange_->BeginPull(pull.version, pull.included, pull.screened);
  return absl::OkStatus();
}

absl::Status Averager::FinishPull(const RankProtocol::Pull& pull, Traffic* traffic, bool* kept) {
  progress_.Enter(v1::ACTIVITY_EXCHANGING);
  CADRE_RETURN_IF_ERROR(failure_.Blame(v1::FAILURE_CAUSE_AGGREGATOR, exchange_->Finish(traffic)));
  transferred_ += exchange_->duration();
  progress_.Advance();
  // Without overlap, nothing has changed the weights since the contribution.
  if (averaging_.overlap().steps() > 0) {
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
    CADRE_RETURN_IF_ERROR(GatherPart());
  }
  // No operation may still use the weights that are overwritten.
  CADRE_RETURN_IF_ERROR(model_.AwaitOperations());
  // After this barrier every rank has pulled.
  CADRE_RETURN_IF_ERROR(group().Barrier());
  const uint32_t late = exchange_->Adopt();
  const bool keeps_late = has_version_ && exchange_->keeps_late_changes() && late == 0;
  *kept = pull.included || (keeps_late && !pull.screened);
  ReportDropped(late);
  if (pull.screened) counters_.Add("changes_screened");
  if (states_round_ > 0) {
    options_.states->Replace(std::min(std::exchange(states_round_, 0), pull.version),
                             model_.States());
  }
  // Before its first version, a group has contributed nothing.
  if (KeepsCarried() && has_version_) {
    options_.residuals->Settle(pull.version, [&](StateVault::Snapshot& each) {
      const bool newest = each.version == kept_round_;
      Settle(pull.version, pull.included && newest, pull.screened && newest, /*begins=*/false,
             each);
      return true;
    });
  }
  CADRE_RETURN_IF_ERROR(StorePart());
  if (coder_ != nullptr) CADRE_RETURN_IF_ERROR(coder_->Adopt());
  CountPulled(*traffic);
  has_version_ = true;
  return absl::OkStatus();
}

void Averager::CountPulled(const Traffic& traffic) {
  counters_.Add("pulled_payload_bytes", traffic.payload_received);
  counters_.Add("pulled_message_bytes", traffic.message_received);
}

absl::Status Averager::Merge() {
  CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
  exchange_->Merge();
  return StorePart();
}

// ---- What survives the generation

// The states of version 0 are zero, or those of a checkpoint. A contribution of an earlier
// generation that the version does not include is late, and kept as that of a group that goes on.
// But what is older than the group's newest contribution in the version is a part of it already, or
// the steps of the contribution have been repeated: a rank that was not in the group has missed it.
absl::Status Averager::Restore(const v1::Start& start) {
  const uint32_t version = start.version();
  const v1::IncludedContribution& included = start.included();
  if (version > 0 && KeepsStates()) {
    CADRE_RETURN_IF_ERROR(RestoreStates(version, included.round()));
  }
  if (!KeepsCarried()) return absl::OkStatus();
  uint32_t late = 0;
  options_.residuals->Settle(version, [&](StateVault::Snapshot& each) {
    const bool same_round = included.round() == each.version;
    const bool is_included = same_round && included.generation() == each.generation;
    const bool repeated = same_round && !is_included && HasChange(each);
    if (each.version < included.round() || repeated) return false;
    const v1::ScreenedChange& screened = start.screened();
    const bool is_screened = screened.scale() == 0 && screened.round() == each.version &&
                             screened.generation() == each.generation;
    late = std::max(late, Settle(version, is_included, is_screened, /*begins=*/true, each));
    return true;
  });
  ReportDropped(late);
  if (version > 0) CADRE_RETURN_IF_ERROR(RestoreCarried(version, included.round()));
  if (!CarriesAlone()) return absl::OkStatus();
  carries_ = true;
  carried_version_ = version;
  options_.residuals->Clear();
  return absl::OkStatus();
}

uint32_t Averager::Settle(uint32_t version, bool included, bool screened, bool begins,
                          StateVault::Snapshot& snapshot) const {
  std::vector<float>& values = snapshot.tensors.front();
  uint32_t late = 0;
  size_t begin = 0;
  for (UpdateCount& each : snapshot.positions) {
    const size_t end = begin + each.positions.size();
    // The decision is that on the contribution of the snapshot's round; others are late already.
    const bool own = each.updates == snapshot.version;
    const bool leaves = own && (included || screened);
    KeptShare share;
    if (own || begins) {
      share = ShareOf(averaging_, each, version, own && included, own && screened);
    }
    late = std::max(late, share.dropped);
    if (each.updates > 0 && (leaves || share.dropped > 0)) {
      const bool coded = snapshot.tensors.size() > 1 && share.dropped == 0 && !screened;
      for (size_t i = begin; i < end; ++i) {
        values[i] = coded ? share.factor * snapshot.tensors[1][i] : 0;
      }
      each.updates = 0;
    }
    begin = end;
  }
  snapshot.tensors.resize(1);
  return late;
}

void Averager::ReportDropped(uint32_t late) {
  if (late == 0) return;
  LOG(WARNING) << "what this rank has learned for a round that went on without its group is "
                  "dropped: it would be "
               << late << " rounds late, and averaging.staleness.max_rounds is "
               << averaging_.staleness().max_rounds();
  counters_.Add("changes_dropped");
}

// Requires: the weights of the first version are stored. A group that has contributed since the
// newest rollback had states.
absl::Status Averager::RestoreStates(uint32_t version, uint32_t included_round) {
  CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/true));
  StateVault::States states = model_.States();
  CADRE_ASSIGN_OR_RETURN(const int64_t found, options_.states->Restore(version, &states, group()));
  LOG_IF(INFO, group().index() == 0)
      << "optimizer states of version " << version << ": the ranks hold those of " << found
      << " of " << model_.index().size() << " elements; the others begin with zero";
  const bool had_states = found > 0 || included_round > assignment_.branch();
  if (had_states && found < model_.index().size() && group().index() == 0) {
    progress_.AddWarning(
        assignment_.place().run(),
        absl::StrCat("group ", assignment_.place().group(), ": the optimizer states of ",
                     model_.index().size() - found, " of ", model_.index().size(),
                     " elements were lost with its ranks and begin with zero"));
  }
  if (found == 0) return absl::OkStatus();
  model_.RestoreStates(states);
  return model_.Store(/*states=*/true);
}

absl::Status Averager::RestoreCarried(uint32_t version, uint32_t included_round) {
  std::vector<float> values(exchange_->elements());
  CADRE_RETURN_IF_ERROR(exchange_->Carried(values));
  StateVault::States carried;
  carried.tensors.push_back(ExchangedIn(exchanged_, values));
  CADRE_ASSIGN_OR_RETURN(const int64_t found,
                         options_.residuals->Restore(version, &carried, group()));
  LOG_IF(INFO, group().index() == 0 && found > 0)
      << "the ranks hold what earlier contributions have left of " << found << " of "
      << model_.index().size() << " elements before version " << version;
  if (included_round > 0 && found < model_.index().size() && group().index() == 0) {
    progress_.AddWarning(
        assignment_.place().run(),
        absl::StrCat("group ", assignment_.place().group(), ": what its contributions up to round ",
                     included_round, " have left out of ", model_.index().size() - found, " of ",
                     model_.index().size(), " elements was lost with its ranks"));
  }
  if (found == 0) return absl::OkStatus();
  std::vector<ShardExchange::LateChange> late;
  for (const UpdateCount& each : carried.updates) {
    if (each.updates == 0) continue;
    const float factor = ShareOf(averaging_, each, version, /*included=*/false).factor;
    late.push_back({each.positions, static_cast<uint32_t>(each.updates), factor});
  }
  exchange_->SetCarried(std::move(values), late);
  return absl::OkStatus();
}

absl::Status Averager::KeepCarried() {
  StateVault::Snapshot& kept = options_.residuals->Keep(0, CountsOf(exchanged_, {}), /*tensors=*/1);
  CADRE_RETURN_IF_ERROR(exchange_->Carried(kept.tensors[0]));
  return options_.residuals->Replicate(group());
}

absl::Status Averager::KeepStaged(uint32_t version) {
  if (!KeepsCarried() || !has_version_) return absl::OkStatus();
  kept_round_ = version + 1;
  if (CarriesAlone()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(KeepUndecided());
  return options_.residuals->Replicate(group());
}

absl::Status Averager::KeepUndecided() {
  StateVault& vault = *options_.residuals;
  StateVault::Snapshot& kept =
      vault.Keep(kept_round_, CountsOf(exchanged_, exchange_->Changes()), codes_up_ ? 2 : 1);
  const absl::Status copied = exchange_->WhatMayBeKept(
      kept.tensors[0], codes_up_ ? std::span(kept.tensors[1]) : std::span<float>());
  if (!copied.ok()) vault.DropFrom(kept_round_);
  return copied;
}

void Averager::KeepForNextGeneration() {
  // What was not reported to the coordinator is in no version.
  const bool reported = exchange_->undecided_round() == kept_round_;
  StateVault::Snapshot& kept = options_.residuals->Keep(
      carried_version_, CountsOf(exchanged_, exchange_->late()), /*tensors=*/1);
  // Neither call has a device that could fail.
  absl::Status copied = exchange_->Carried(kept.tensors[0], /*weighted=*/false);
  if (copied.ok() && reported) copied = KeepUndecided();
  CHECK(copied.ok()) << copied;
}

absl::Status Averager::HandOver(uint32_t version, const std::vector<bool>& leaving) {
  if (KeepsStates()) {
    CADRE_RETURN_IF_ERROR(options_.states->HandOver(version, leaving, group()));
  }
  if (!KeepsCarried()) return absl::OkStatus();
  return options_.residuals->HandOver(version, leaving, group());
}

std::vector<AveragingState> Averager::MakeStates() {
  std::vector<std::string> names;
  if (!has_shards()) return {};
  if (codes_up_) names.emplace_back(kContributionResidual);
  for (const std::string& name : ShardStateNames(averaging_)) {
    if (!name.empty()) names.push_back(name);
  }
  state_values_.assign(names.size(), std::vector<float>(exchange_->elements()));
  std::vector<AveragingState> states;
  for (size_t i = 0; i < names.size(); ++i) {
    states.push_back({names[i], ExchangedIn(exchanged_, state_values_[i])});
  }
  return states;
}

absl::Status Averager::PullStates(uint32_t version,
                                  std::vector<std::vector<float>>::iterator values) {
  const std::vector<std::string> names = ShardStateNames(averaging_);
  Traffic traffic;
  absl::Status pulled;
  for (size_t state = 0; state < names.size() && pulled.ok(); ++state) {
    if (names[state].empty()) continue;
    pulled = exchange_->PullState(version, state, *values++, &traffic);
  }
  CountPulled(traffic);
  return pulled;
}

absl::StatusOr<std::vector<AveragingState>> Averager::States(uint32_t version,
                                                             std::string* warning) {
  std::vector<AveragingState> states = MakeStates();
  if (states.empty()) return states;
  if (codes_up_) {
    CADRE_RETURN_IF_ERROR(exchange_->Carried(state_values_.front()));
  }
  const size_t own = codes_up_ ? 1 : 0;
  const absl::Status pulled =
      PullStates(version, state_values_.begin() + static_cast<int64_t>(own));
  const absl::Status all = Agree(pulled, group());
  if (all.ok()) return states;
  // A group that is being ended must not replace a complete checkpoint by one without states.
  CADRE_RETURN_IF_ERROR(cancellation_.status());
  if (!absl::IsFailedPrecondition(all) && !absl::IsDeadlineExceeded(all)) {
    CADRE_RETURN_IF_ERROR(failure_.Blame(v1::FAILURE_CAUSE_AGGREGATOR, pulled));
    return all;
  }
  // If the error is that of a group of several ranks, the barrier has it, too.
  CADRE_RETURN_IF_ERROR(group().Barrier());
  *warning = absl::StrCat("it does not contain what the aggregators store with version ", version,
                          ": ", all.message());
  states.resize(own);
  return states;
}

}  // namespace cadre
