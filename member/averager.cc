// Values travel between the model and the shards in one of three forms. Ranks that own few
// intervals of the parameter order exchange what they own. With codes, with fragments, or with many
// intervals, each rank exchanges one contiguous part (Regroup moves the values inside the group). A
// device may code the contributions of its part itself (ContributionCoder); the weights then do not
// pass through host memory.
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
#include "server/client/refusal.h"

namespace cadre {
namespace {

// If the ranks own more intervals than this, they exchange one contiguous part each, as with codes:
// a contribution has at most 65,536 ranges (server/ledger). Contributions are then coded on the
// host, because a device would need a copy for each interval.
constexpr uint64_t kMaxIntervals = 1 << 14;

// Whether the snapshot has the change of its own round, and not only what is carried.
bool HasChange(const StateVault::Snapshot& snapshot) {
  return absl::c_any_of(snapshot.positions, [&](const UpdateCount& each) {
    return each.updates > 0 && each.updates == snapshot.version;
  });
}

}  // namespace

absl::Status Averager::Prepare(GroupControl& control) {
  codes_up_ = CodingOf(averaging_.up()).has_value();
  exchanged_ = model_.owned();
  uint64_t intervals[] = {exchanged_.size()};
  CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(intervals)));
  if (ExchangesUnits(averaging_) || intervals[0] > kMaxIntervals) {
    const ExchangeUnits units(model_.index());
    if (ExchangesUnits(averaging_)) units_ = units;
    const Interval part = units.PartOf(assignment_.place().rank(), group().size());
    part_values_.resize(part.size());
    part_ = {part, part_values_};
    CADRE_ASSIGN_OR_RETURN(regroup_, Regroup::Make(model_.owned(), part, group()));
    exchanged_ = std::span(&part_, 1);
  }
  if (intervals[0] <= kMaxIntervals) CADRE_RETURN_IF_ERROR(MakeCoder());
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
  if (coder_ != nullptr) {
    memory.set_buffers(memory.buffers() + coder_->device_bytes());
  } else if (assignment_.plan().own_loop()) {
    // The library does not know what else a program allocates.
    memory.set_buffers(memory.buffers() + exchange_->ExpectedBytes() + CarriedBytes());
  }
}

// Those of the vault, and of what is copied to it.
int64_t Averager::CarriedBytes() const {
  if (!KeepsCarried()) return 0;
  int64_t elements = 0;
  for (const Owned& each : exchanged_) elements += each.positions.size();
  const int tensors = codes_up_ ? 2 : 1;
  return StateVault::SettledBytes(elements, tensors, model_.group().size()) +
         elements * tensors * static_cast<int64_t>(sizeof(float));
}

bool Averager::merges() const {
  return averaging_.overlap().steps() > 0 || FragmentsOf(averaging_) > 1;
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
  if (KeepsStates()) {
    options_.states->Keep(stage.round, model_.States());
    CADRE_RETURN_IF_ERROR(options_.states->Replicate(group()));
  }
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
    exchange_->SetCarried(state_values_.front());
    // The next generation may start from a later version, which does not include it.
    if (KeepsCarried()) CADRE_RETURN_IF_ERROR(KeepCarried());
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

absl::Status Averager::BeginPull(uint32_t version) {
  if (exchange_->begun()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(OfferInitial());
  exchange_->BeginPull(version);
  return absl::OkStatus();
}

absl::Status Averager::FinishPull(const RankProtocol::Pull& pull, Traffic* traffic, bool* kept) {
  progress_.Enter(v1::ACTIVITY_EXCHANGING);
  CADRE_RETURN_IF_ERROR(failure_.Blame(v1::FAILURE_CAUSE_AGGREGATOR, exchange_->Finish(traffic)));
  transferred_ += exchange_->duration();
  progress_.Advance();
  if (merges()) {
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
    CADRE_RETURN_IF_ERROR(GatherPart());
  }
  // No operation may still use the weights that are overwritten.
  CADRE_RETURN_IF_ERROR(model_.AwaitOperations());
  // After this barrier every rank has pulled.
  CADRE_RETURN_IF_ERROR(group().Barrier());
  const uint32_t late = exchange_->Adopt(pull.included, pull.screened);
  const bool keeps_late = has_version_ && exchange_->keeps_late_changes() && late == 0;
  *kept = pull.included || (keeps_late && !pull.screened);
  ReportDropped(late);
  if (pull.screened) counters_.Add("changes_screened");
  // Before its first version, a group has contributed nothing.
  if (KeepsCarried() && has_version_) {
    options_.residuals->Settle(pull.version, [&](StateVault::Snapshot& each) {
      const bool newest = each.version == keepable_round_;
      Settle(pull.version, pull.included && newest, pull.screened && newest, each);
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
    late = std::max(late, Settle(version, is_included, is_screened, each));
    return true;
  });
  ReportDropped(late);
  return version > 0 ? RestoreCarried(version, included.round()) : absl::OkStatus();
}

uint32_t Averager::Settle(uint32_t version, bool included, bool screened,
                          StateVault::Snapshot& snapshot) const {
  std::vector<float>& values = snapshot.tensors.front();
  uint32_t late = 0;
  size_t begin = 0;
  for (UpdateCount& each : snapshot.positions) {
    const size_t end = begin + each.positions.size();
    const KeptShare share = ShareOf(each, version, included, screened);
    late = std::max(late, share.dropped);
    if (each.updates > 0 && (included || screened || share.dropped > 0)) {
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

KeptShare Averager::ShareOf(const UpdateCount& kept, uint32_t version, bool included,
                            bool screened) const {
  if (kept.updates == 0) return {.factor = 1};
  return KeptShareOf(averaging_, static_cast<uint32_t>(kept.updates), version, included, screened);
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
  std::vector<float> values;
  CADRE_RETURN_IF_ERROR(exchange_->Carried(&values));
  StateVault::States carried;
  carried.tensors.push_back(ExchangedIn(values));
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
  for (const UpdateCount& each : carried.updates) {
    const float factor = ShareOf(each, version, /*included=*/false).factor;
    for (const Owned& part : PartsIn(each.positions, carried.tensors.front())) {
      for (float& value : part.values) value *= factor;
    }
  }
  exchange_->SetCarried(values);
  return absl::OkStatus();
}

std::vector<Owned> Averager::ExchangedIn(std::span<float> values) const {
  std::vector<Owned> owned;
  for (const Owned& each : exchanged_) {
    owned.push_back({each.positions, values.first(each.positions.size())});
    values = values.subspan(each.positions.size());
  }
  return owned;
}

absl::Status Averager::KeepCarried() {
  std::vector<float> values;
  CADRE_RETURN_IF_ERROR(exchange_->Carried(&values));
  StateVault::States states{.tensors = {ExchangedIn(values)}};
  for (const Owned& each : exchanged_) states.updates.push_back({each.positions});
  options_.residuals->Keep(0, states);
  return options_.residuals->Replicate(group());
}

absl::Status Averager::KeepStaged(uint32_t version) {
  if (!KeepsCarried() || !has_version_) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(exchange_->WhatMayBeKept(&keepable_));
  keepable_round_ = version + 1;
  StateVault::States states{.tensors = {ExchangedIn(keepable_.change)}};
  if (codes_up_) states.tensors.push_back(ExchangedIn(keepable_.left_out));
  auto exchanged = keepable_.exchanged.begin();
  for (const auto& [positions, values] : exchanged_) {
    for (int64_t begin = positions.begin; begin < positions.end;) {
      const bool rest = exchanged == keepable_.exchanged.end() || begin < exchanged->begin;
      int64_t end = positions.end;
      if (!rest) {
        end = (exchanged++)->end;
      } else if (exchanged != keepable_.exchanged.end()) {
        end = std::min(end, exchanged->begin);
      }
      states.updates.push_back({{begin, end}, rest ? 0 : keepable_round_});
      begin = end;
    }
  }
  options_.residuals->Keep(keepable_round_, states);
  return options_.residuals->Replicate(group());
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
  int64_t elements = 0;
  for (const Owned& owned : exchanged_) elements += owned.positions.size();
  state_values_.assign(names.size(), std::vector<float>(elements));
  std::vector<AveragingState> states;
  for (size_t i = 0; i < names.size(); ++i) {
    states.push_back({names[i], ExchangedIn(state_values_[i])});
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
    CADRE_RETURN_IF_ERROR(exchange_->Carried(&state_values_.front()));
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
