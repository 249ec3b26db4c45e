// The loop of one rank in one generation.
//
// A generation of a group proceeds as follows; rank 0 alone exchanges messages with the
// coordinator.
//
//   open the data, connect, agree on the plan, prepare the model
//   Prepared -> Start
//   make version 0, or pull the version that Start names; check its digest, gather; Adopted
//   repeat
//     train to the boundary              (H steps; the last step omits its all-gather), or fewer
//                                        steps, if the others wait for a group that catches up
//     while the coordinator is unreachable, train further periods, up to max_solo_steps
//     stage the owned values at the shards, and keep the optimizer states; Contributed -> Decision
//     pull the decided version, check its digest, gather; Adopted
//     evaluate this group's interval of the test split; Evaluated
//   until the group is released
//
// With averaging.overlap, staging and pulling run in the background of the next steps, after which
// the version is adopted, evaluated and merged with what these steps have changed.
//
// This is local SGD with periodic averaging (Stich, ICLR 2019; Lin et al., ICLR 2020) between
// groups, each of which trains synchronously. Momentum is not averaged; the ranks
// of a group that is re-formed restore it from their vaults (state_vault.h).
//
// Invariant. All ranks call the same collectives, because every branch depends only on values that
// are equal on all ranks. These are the plan, the spec, and what rank 0 broadcasts: Start,
// Decision, and whether the coordinator is reachable. No branch depends on a rank's own clock or
// its own connection. After an error a rank leaves; the transport then fails on the other ranks.
//
// Durability. A contribution is durable on every shard before rank 0 reports it. The steps between
// boundaries are not durable: if a generation fails, the next one repeats the steps since the last
// committed version. A checkpoint has the version without the steps of the overlap, but with the
// optimizer states after them.
//
// Limits. Evaluation and checkpoints stop training for their duration. If one rank fails, the
// generation ends for its whole group.
#include "member/member_loop.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "comm/transport/suspects.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "member/rank_protocol.h"
#include "member/regroup.h"
#include "member/shard_exchange.h"
#include "model/averaging_state.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/opaque.h"
#include "proto/enum_text.h"
#include "server/client/refusal.h"

namespace cadre {
namespace {

// Interval at which rank 0 informs its peers that it still waits for the coordinator; well below
// the time after which a silent peer is considered dead.
constexpr absl::Duration kWaitInterval = absl::Seconds(2);

// If the ranks own more intervals than this, they exchange one contiguous part each, as with codes:
// a contribution has at most 65,536 ranges (server/ledger). Contributions are then coded on the
// host, because a device would need a copy for each interval.
constexpr uint64_t kMaxIntervals = 1 << 14;

class MemberLoop {
 public:
  MemberLoop(const v1::Assignment& assignment, TrainedModel& model, GroupControl& control,
             Cancellation& cancellation, Counters& counters, const MemberLoopOptions& options)
      : assignment_(assignment),
        spec_(assignment.spec()),
        rank_slot_(assignment.place()),
        model_(model),
        control_(control),
        cancellation_(cancellation),
        counters_(counters),
        options_(options),
        progress_(options.progress != nullptr ? *options.progress : own_progress_),
        protocol_(assignment) {}

  MemberLoop(const MemberLoop&) = delete;
  MemberLoop& operator=(const MemberLoop&) = delete;
  ~MemberLoop() {
    exchange_.reset();
    coder_.reset();
    regroup_.reset();
    model_.Close();
  }

  TrainerOutcome Run() {
    for (StateVault* vault : {options_.states, options_.residuals}) {
      if (vault != nullptr) vault->Enter(assignment_);
    }
    progress_.Enter(v1::ACTIVITY_PREPARING);
    absl::Status status = Prepare();
    if (status.ok()) status = Train();
    const absl::Status device = model_.device_status();
    // After a cancellation its reason is reported, and not the errors that it caused.
    if (const absl::Status cancelled = cancellation_.status(); !cancelled.ok()) {
      return {.status = cancelled};
    }
    // The device's message says what was requested.
    if (absl::IsResourceExhausted(device) && !absl::IsCancelled(status)) {
      return {.status = device, .cause = v1::FAILURE_CAUSE_MEMORY};
    }
    return {.status = status,
            .cause = CauseOf(status),
            .suspects = Suspects(status),
            .peer_released = IsPeerReleased(status)};
  }

 private:
  v1::FailureCause CauseOf(const absl::Status& status) const {
    if (failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) return failure_.cause();
    if (absl::IsCancelled(status)) return v1::FAILURE_CAUSE_UNSPECIFIED;
    if (absl::IsOutOfRange(status)) return v1::FAILURE_CAUSE_DIVERGED;
    // The failure of a peer fails the device, too.
    if (!Suspects(status).empty()) return v1::FAILURE_CAUSE_PEER;
    if (!model_.device_status().ok()) return v1::FAILURE_CAUSE_DEVICE;
    return v1::FAILURE_CAUSE_UNSPECIFIED;
  }

  // The ranks that the error names, or else the error of the group if it has failed.
  std::vector<int> Suspects(const absl::Status& status) const {
    std::vector<int> ranks = SuspectsOf(status);
    const bool own = failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED;
    if (ranks.empty() && !own && transport_ != nullptr) ranks = SuspectsOf(transport_->status());
    return ranks;
  }

  bool IsPeerReleased(const absl::Status& status) const {
    if (failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) return false;
    return IsOfRelease(status) || (transport_ != nullptr && IsOfRelease(transport_->status()));
  }

  // Everything before training.
  absl::Status Prepare() {
    CADRE_RETURN_IF_ERROR(model_.Open(failure_));
    progress_.Advance();
    CADRE_ASSIGN_OR_RETURN(transport_, options_.connect(assignment_));
    on_cancel_ =
        cancellation_.OnCancel([this](const absl::Status& reason) { transport_->Abort(reason); });
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(model_.Prepare(*transport_, protocol_, failure_));
    progress_.Advance();
    CADRE_RETURN_IF_ERROR(MakeExchange());
    return model_.device_status();
  }

  bool lead() const { return rank_slot_.rank() == 0; }
  const v1::Start& start() const { return protocol_.start(); }
  Communicator& group() { return model_.group(); }

  // A collective.
  absl::Status MakeExchange() {
    const v1::Averaging& averaging = spec_.averaging();
    exchanged_ = model_.owned();
    uint64_t intervals[] = {exchanged_.size()};
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(intervals)));
    if (ExchangesUnits(averaging) || intervals[0] > kMaxIntervals) {
      const ExchangeUnits units(model_.index());
      if (ExchangesUnits(averaging)) units_ = units;
      const Interval part = units.PartOf(rank_slot_.rank(), group().size());
      part_values_.resize(part.size());
      part_ = {part, part_values_};
      CADRE_ASSIGN_OR_RETURN(regroup_, Regroup::Make(model_.owned(), part, group()));
      exchanged_ = std::span(&part_, 1);
    }
    if (intervals[0] <= kMaxIntervals) CADRE_RETURN_IF_ERROR(MakeCoder());
    exchange_ = std::make_unique<ShardExchange>(
        assignment_, model_.index(), units_ ? &*units_ : nullptr, exchanged_, control_,
        cancellation_, progress_, options_.exchange_silence, options_.credentials, coder_.get());
    return absl::OkStatus();
  }

  // A collective. Merging needs the values on the host, so they are coded there, too.
  absl::Status MakeCoder() {
    const v1::Averaging& averaging = spec_.averaging();
    const int shards = assignment_.shards_size();
    if (shards == 0 || !CodesOnDevice(averaging)) return absl::OkStatus();
    ContributionCoder::Layout layout{.part = part_.positions,
                                     .codec = CodecOf(*CodingOf(averaging.up()))};
    for (int shard = 0; shard < shards; ++shard) {
      const Interval shared = Intersect(units_->PartOf(shard, shards), part_.positions);
      const auto units = shared.empty() ? std::span<const ExchangeUnit>() : units_->In(shared);
      layout.shards.emplace_back(units.begin(), units.end());
    }
    CADRE_ASSIGN_OR_RETURN(coder_, model_.MakeContributionCoder(std::move(layout)));
    return absl::OkStatus();
  }

  // A collective. The fetched weights become those that are exchanged.
  absl::Status GatherPart() {
    return regroup_ ? regroup_->ToPart(model_.owned(), part_values_) : absl::OkStatus();
  }

  // Overwrites this rank's part of the replica with what is being pulled.
  // `kept`: as in TrainedModel::OnAdopted.
  absl::Status FinishPull(uint32_t version, bool included, Traffic* traffic, bool* kept) {
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
    const uint32_t late = exchange_->Adopt(included);
    *kept = included || (has_version_ && exchange_->keeps_late_changes() && late == 0);
    if (late > 0) {
      LOG(WARNING) << "what this rank has learned for a round that went on without its group is "
                      "dropped: it would be "
                   << late << " rounds late, and averaging.staleness.max_rounds is "
                   << spec_.averaging().staleness().max_rounds();
      counters_.Add("changes_dropped");
    }
    // A group that has just begun has kept nothing yet that its vaults do not have.
    if (KeepsResiduals() && has_version_ && !included) {
      CADRE_RETURN_IF_ERROR(KeepResidual(version, /*included=*/false));
    }
    CADRE_RETURN_IF_ERROR(StorePart());
    if (coder_ != nullptr) CADRE_RETURN_IF_ERROR(coder_->Adopt());
    counters_.Add("pulled_payload_bytes", traffic->payload_received);
    counters_.Add("pulled_message_bytes", traffic->message_received);
    return absl::OkStatus();
  }

  // A collective. Stores the values that were exchanged as weights.
  absl::Status StorePart() {
    if (regroup_) CADRE_RETURN_IF_ERROR(regroup_->FromPart(part_values_, model_.owned()));
    return model_.Store(/*states=*/false);
  }

  // Whether the group merges a version with values of its own.
  bool merges() const {
    return spec_.averaging().overlap().steps() > 0 || FragmentsOf(spec_.averaging()) > 1;
  }

  // A collective.
  absl::StatusOr<uint64_t> GroupDigest() {
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
    uint64_t digest[] = {0};
    for (const Owned& owned : model_.owned()) {
      digest[0] += Digest(owned.values, owned.positions.begin);
    }
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(digest)));
    return digest[0];
  }

  // ---- Training

  // Carries out the actions of protocol_ until one fails or the group is released.
  absl::Status Train() {
    v1::Prepared prepared = model_.Describe();
    v1::MemoryUse& memory = *prepared.mutable_memory();
    if (coder_ != nullptr) {
      memory.set_buffers(memory.buffers() + coder_->device_bytes());
    } else if (assignment_.plan().own_loop()) {
      // The library does not know what else a program allocates.
      memory.set_buffers(memory.buffers() + exchange_->ExpectedBytes());
    }
    *prepared.mutable_place() = rank_slot_;
    progress_.Enter(v1::ACTIVITY_WAITING);
    CADRE_ASSIGN_OR_RETURN(v1::Start start, control_.PreparedAndStart(prepared));
    // Each rank received its own Start, possibly a different one; rank 0's is used.
    CADRE_RETURN_IF_ERROR(BroadcastMessage(&start));
    RankProtocol::Actions actions =
        protocol_.Handle(RankProtocol::Started{start, prepared.train_samples()});
    step_ = start.step();
    model_.StartAt(step_);
    while (true) {
      // Only the last action has an event.
      std::optional<RankProtocol::Event> event;
      for (const RankProtocol::Action& action : actions) {
        CADRE_RETURN_IF_ERROR(std::visit([&](const auto& one) { return Do(one, &event); }, action));
      }
      actions = protocol_.Handle(*event);
    }
  }

  absl::Status Do(const RankProtocol::Train& train, std::optional<RankProtocol::Event>* event) {
    if (!train.resumes) {
      period_start_ = steady_.Now();
      waited_ = absl::ZeroDuration();
    }
    CADRE_ASSIGN_OR_RETURN(const uint32_t reached, model_.Train(train, failure_));
    step_ = std::max(step_, reached);
    // A rank that is alone need not ask others whether they leave.
    const bool last = group().size() == 1 && exchange_->has_shards() && control_.draining() &&
                      reached >= protocol_.next_boundary();
    *event = RankProtocol::Trained{.leaves = last || reached < train.until, .step = reached};
    return absl::OkStatus();
  }

  // ---- The boundary

  // Measures the time that a round keeps the group from training: the lifetimes of these objects.
  class Exposure {
   public:
    explicit Exposure(MemberLoop& loop) : loop_(loop), start_(loop.steady_.Now()) {}
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;
    ~Exposure() { Count(); }

    absl::Time start() const { return start_; }
    // Returns the time since the last call.
    absl::Duration Take() {
      Count();
      return std::exchange(loop_.exposed_, absl::ZeroDuration());
    }

   private:
    void Count() {
      const absl::Time now = loop_.steady_.Now();
      const absl::Duration time = now - std::exchange(start_, now);
      loop_.exposed_ += time;
      loop_.waited_ += time;
    }

    MemberLoop& loop_;
    absl::Time start_;
  };

  absl::Status Do(const RankProtocol::AskPresence& /*ask*/,
                  std::optional<RankProtocol::Event>* event) {
    uint64_t away = lead() && !control_.connected() ? 1 : 0;
    CADRE_RETURN_IF_ERROR(BroadcastNumber(&away));
    *event = RankProtocol::Presence{.away = away != 0};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::AskNudge& ask, std::optional<RankProtocol::Event>* event) {
    const bool leaves = exchange_->has_shards() && control_.LeavesBefore(
                            ask.steps * absl::Seconds(model_.step_seconds()));
    uint64_t ranks[] = {lead() && control_.nudged(ask.round) ? 1U : 0U, leaves ? 1U : 0U};
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(ranks)));
    *event = RankProtocol::Nudged{.nudged = ranks[0] > 0, .leaves = ranks[1] > 0};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Leave& /*leave*/,
                  std::optional<RankProtocol::Event>* /*event*/) {
    CADRE_RETURN_IF_ERROR(Leave(protocol_.version(), std::vector<bool>(group().size(), true)));
    return absl::CancelledError("the program has ended its loop");
  }

  absl::Status Do(const RankProtocol::Stage& stage, std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    CADRE_RETURN_IF_ERROR(model_.AwaitOperations());
    // Non-finite weights must not be averaged.
    if (stage.samples > 0)
      CADRE_RETURN_IF_ERROR(AfterSteps(step_, protocol_.version(), model_.CheckWeights()));
    if (exchange_->has_shards()) {
      const bool coder_codes = coder_ != nullptr && !stage.initial;
      if (!coder_codes) {
        CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/KeepsStates()));
      } else if (KeepsStates()) {
        CADRE_RETURN_IF_ERROR(model_.FetchStates());
      }
      if (KeepsStates()) options_.states->Keep(stage.round, model_.States());
      const absl::Time begin = steady_.Now();
      CADRE_RETURN_IF_ERROR(coder_codes ? coder_->TakeChange() : GatherPart());
      if (stage.initial) {
        exchange_->BeginStageVersion(stage.round);
      } else {
        exchange_->BeginStage(stage.round, stage.samples, stage.fragment);
      }
      if (coder_codes) {
        transferred_ += steady_.Now() - begin;
        // While the frames are staged.
        CADRE_RETURN_IF_ERROR(KeepStagedResidual());
      }
    }
    PeriodReport period = model_.TakePeriod();
    contributed_ = {.loss = period.loss, .rate = period.rate};
    contributed_.metrics = std::move(period.metrics);
    contributed_.train_seconds =
        absl::ToDoubleSeconds(exposure.start() - period_start_ - std::exchange(waited_, {}));
    period_start_ = exposure.start();
    if (!stage.background) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::AwaitStaged& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    uint64_t unfinished[] = {await.wait || exchange_->finished() ? 0U : 1U};
    if (!await.wait) {
      CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span<uint64_t>(unfinished)));
    }
    if (unfinished[0] == 0) return AwaitStaged(event);
    *event = RankProtocol::Unfinished{};
    return absl::OkStatus();
  }

  // A collective. Waits until all ranks have staged.
  absl::Status AwaitStaged(std::optional<RankProtocol::Event>* event) {
    Traffic traffic;
    if (exchange_->begun()) {
      progress_.Enter(v1::ACTIVITY_EXCHANGING);
      const absl::Status staged = exchange_->Finish(&traffic);
      transferred_ += exchange_->duration();
      // If the contribution is too late, the coordinator's decision determines how to continue.
      const bool late = RefusalOf(staged) == v1::REFUSAL_CLOSED_ROUND;
      if (!late) CADRE_RETURN_IF_ERROR(failure_.Blame(v1::FAILURE_CAUSE_AGGREGATOR, staged));
      progress_.Advance();
      if (late) counters_.Add("contributions_late");
      counters_.Add("staged_payload_bytes", traffic.payload_sent);
      counters_.Add("staged_message_bytes", traffic.message_sent);
    }
    if (coder_ == nullptr) CADRE_RETURN_IF_ERROR(KeepStagedResidual());
    RankProtocol::Staged result = contributed_;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, &result));
    // After this barrier every rank has staged.
    CADRE_RETURN_IF_ERROR(group().Barrier());
    staged_at_ = steady_.Now();
    result.stage_seconds = absl::ToDoubleSeconds(staged_at_ - period_start_);
    *event = result;
    return absl::OkStatus();
  }

  // `leaving`, if not null: whether each rank leaves, which is shared by the same collective.
  template <typename Result>
  absl::Status SumTraffic(const Traffic& traffic, Result* result,
                          std::vector<bool>* leaving = nullptr) {
    std::vector<uint64_t> sums = {traffic.payload_sent + traffic.payload_received,
                                  traffic.message_sent + traffic.message_received};
    const size_t first = sums.size();
    if (leaving != nullptr) {
      sums.resize(first + group().size());
      sums[first + rank_slot_.rank()] = control_.draining() ? 1 : 0;
    }
    CADRE_RETURN_IF_ERROR(group().AllReduceSum(std::span(sums)));
    result->payload_bytes = sums[0];
    result->message_bytes = sums[1];
    if (leaving != nullptr) leaving->assign(sums.begin() + first, sums.end());
    return absl::OkStatus();
  }

  // ---- Optimizer states

  // Equal on all ranks.
  bool KeepsStates() const {
    return options_.states != nullptr && exchange_->has_shards() && model_.has_states();
  }

  // A collective. Requires: the weights of the first version are stored.
  absl::Status RestoreStates(uint32_t version) {
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/true));
    StateVault::States states = model_.States();
    CADRE_ASSIGN_OR_RETURN(const int64_t found,
                           options_.states->Restore(version, &states, group()));
    LOG_IF(INFO, lead()) << "optimizer states of version " << version
                         << ": the ranks hold those of " << found << " of " << model_.index().size()
                         << " elements; the others begin with zero";
    if (found == 0) return absl::OkStatus();
    model_.RestoreStates(states);
    return model_.Store(/*states=*/true);
  }

  // ---- What codes have left out

  // Equal on all ranks.
  bool KeepsResiduals() const {
    return options_.residuals != nullptr && CodingOf(spec_.averaging().up()) &&
           exchange_->has_shards();
  }

  // As a state of this rank's part of the model.
  StateVault::States ResidualIn(std::span<float> values) const {
    StateVault::States states;
    states.tensors.push_back(ExchangedIn(values));
    return states;
  }

  // `values` as those of the positions that this rank exchanges.
  std::vector<Owned> ExchangedIn(std::span<float> values) const {
    std::vector<Owned> owned;
    for (const Owned& each : exchanged_) {
      owned.push_back({each.positions, values.first(each.positions.size())});
      values = values.subspan(each.positions.size());
    }
    return owned;
  }

  absl::Status KeepResidual(uint32_t version, bool included) {
    CADRE_RETURN_IF_ERROR(exchange_->Carried(included, &residual_));
    options_.residuals->Keep(version, ResidualIn(residual_));
    return absl::OkStatus();
  }

  // The next generation may start from a version that includes the contribution.
  absl::Status KeepStagedResidual() {
    if (!KeepsResiduals() || !has_version_) return absl::OkStatus();
    return KeepResidual(protocol_.version() + 1, /*included=*/true);
  }

  // A collective.
  absl::Status RestoreResidual(uint32_t version) {
    std::vector<float> values(part_.positions.size());
    StateVault::States residual = ResidualIn(values);
    CADRE_ASSIGN_OR_RETURN(const int64_t found,
                           options_.residuals->Restore(version, &residual, group()));
    LOG_IF(INFO, lead() && found > 0)
        << "the ranks hold what the codes have left out of " << found << " of "
        << model_.index().size() << " elements before version " << version;
    if (found > 0) exchange_->SetCarried(values);
    return absl::OkStatus();
  }

  // ---- States of the averaging in checkpoints

  // What a checkpoint contains, as zeros in averaging_values_. What codes have left out of
  // contributions is the first state, if there is any.
  std::vector<AveragingState> MakeAveragingStates() {
    std::vector<std::string> names;
    if (!exchange_->has_shards()) return {};
    if (CodingOf(spec_.averaging().up())) names.emplace_back(kContributionResidual);
    for (const std::string& name : ShardStateNames(spec_.averaging())) {
      if (!name.empty()) names.push_back(name);
    }
    int64_t elements = 0;
    for (const Owned& owned : exchanged_) elements += owned.positions.size();
    averaging_values_.assign(names.size(), std::vector<float>(elements));
    std::vector<AveragingState> states;
    for (size_t i = 0; i < names.size(); ++i) {
      states.push_back({names[i], ExchangedIn(averaging_values_[i])});
    }
    return states;
  }

  // A collective. The states of the adopted version; without those of the shards if these have
  // replaced the version or cannot be reached.
  absl::StatusOr<std::vector<AveragingState>> AveragingStates(std::string* warning) {
    std::vector<AveragingState> states = MakeAveragingStates();
    if (states.empty()) return states;
    auto values = averaging_values_.begin();
    if (CodingOf(spec_.averaging().up())) {
      CADRE_RETURN_IF_ERROR(exchange_->Carried(/*included=*/false, &*values++));
    }
    const auto of_shards = values;
    const std::vector<std::string> names = ShardStateNames(spec_.averaging());
    Traffic traffic;
    absl::Status pulled;
    for (size_t state = 0; state < names.size() && pulled.ok(); ++state) {
      if (names[state].empty()) continue;
      pulled = exchange_->PullState(protocol_.version(), state, *values++, &traffic);
    }
    counters_.Add("pulled_payload_bytes", traffic.payload_received);
    counters_.Add("pulled_message_bytes", traffic.message_received);
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
    *warning = absl::StrCat("it does not contain what the aggregators store with version ",
                            protocol_.version(), ": ", all.message());
    states.resize(of_shards - averaging_values_.begin());
    return states;
  }

  // A collective. The ranks that leave give their states to others first. A rank that leaves is as
  // lost to the others as one that fails.
  absl::Status Leave(uint32_t version, const std::vector<bool>& leaving) {
    if (std::find(leaving.begin(), leaving.end(), true) == leaving.end()) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(model_.OnLeaving());
    if (KeepsStates()) {
      CADRE_RETURN_IF_ERROR(options_.states->HandOver(version, leaving, group()));
    }
    if (KeepsResiduals()) {
      CADRE_RETURN_IF_ERROR(options_.residuals->HandOver(version, leaving, group()));
    }
    return leaving[rank_slot_.rank()] ? control_.LeaveIfDraining() : absl::OkStatus();
  }

  // Whether a group that leaves has trained further since its contribution, and contributes that,
  // too. Groups of several ranks agree on it only at the end of a loop.
  bool ContributesAgain() const {
    return protocol_.steps_ahead() > 0 && !protocol_.discards_steps_ahead() &&
           (assignment_.peers_size() <= 1 || model_.ended_loop());
  }

  absl::Status BroadcastNumber(uint64_t* number) {
    return group().Broadcast(std::as_writable_bytes(std::span(number, 1)), 0);
  }

  // Replaces the message by rank 0's.
  template <typename Message>
  absl::Status BroadcastMessage(Message* message) {
    CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                           BroadcastText(lead() ? message->SerializeAsString() : "", group()));
    if (!message->ParseFromString(bytes)) {
      return absl::InternalError("cannot parse a message from rank 0");
    }
    return absl::OkStatus();
  }

  // Rank 0 receives the decision and broadcasts it. While rank 0 waits, it broadcasts that it still
  // waits, so that its peers do not consider it dead if the coordinator is away for long.
  absl::Status Do(const RankProtocol::AwaitDecision& await,
                  std::optional<RankProtocol::Event>* event) {
    const Exposure exposure(*this);
    if (await.run_ended) CADRE_RETURN_IF_ERROR(model_.OnTrainingEnded());
    while (true) {
      if (await.wait) progress_.Enter(v1::ACTIVITY_WAITING);
      std::optional<v1::Decision> received;
      if (lead()) {
        const absl::Duration patience = await.wait ? kWaitInterval : absl::ZeroDuration();
        CADRE_ASSIGN_OR_RETURN(received, control_.AwaitDecision(patience));
      }
      uint64_t decided = received ? 1 : 0;
      CADRE_RETURN_IF_ERROR(BroadcastNumber(&decided));
      if (decided == 0 && !await.wait) {
        *event = RankProtocol::Unfinished{};
        return absl::OkStatus();
      }
      if (decided == 0) continue;
      decided_at_ = steady_.Now();
      v1::Decision decision = received.value_or(v1::Decision());
      CADRE_RETURN_IF_ERROR(BroadcastMessage(&decision));
      if (decision.adopt() && !decision.included()) {
        LogLeftOut(decision);
      }
      *event = RankProtocol::Decided{std::move(decision)};
      // With averaging, ranks leave after they have adopted the version. Otherwise the steps of a
      // rank that leaves are committed, and no other rank needs anything from it.
      const bool adopts = exchange_->has_shards() && !await.run_ended;
      return adopts ? absl::OkStatus() : control_.LeaveIfDraining();
    }
  }

  // The run takes its first values from one of its groups.
  void LogLeftOut(const v1::Decision& decision) const {
    if (decision.round() == 1 && BeginsWithGroupValues(spec_)) {
      LOG(INFO) << "the run begins with the values of another group; adopting version "
                << decision.version();
      return;
    }
    LOG(WARNING) << "round " << decision.round() << " went on without this group ("
                 << EnumText(decision.refusal()) << "); adopting version " << decision.version();
  }

  absl::Status Do(const RankProtocol::Initialize& /*initialize*/,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    // One group alone continues with what the checkpoint has of the group that wrote it: each of
    // several would contribute it again. The shards read their states themselves; this rank only
    // compares their digests.
    std::vector<AveragingState> averaging;
    if (rank_slot_.group() == 0 && !spec_.checkpoint().from().empty()) {
      averaging = MakeAveragingStates();
    }
    // The weights of a new replica are those of the run's seed.
    CADRE_RETURN_IF_ERROR(model_.LoadCheckpoint(averaging, failure_));
    RankProtocol::Pulled result;
    CADRE_ASSIGN_OR_RETURN(result.digest, GroupDigest());
    CADRE_RETURN_IF_ERROR(GatherPart());
    exchange_->AdoptInitial();
    if (coder_ != nullptr) CADRE_RETURN_IF_ERROR(coder_->Adopt());
    if (!averaging.empty() && averaging.front().name == kContributionResidual) {
      exchange_->SetCarried(averaging_values_.front());
      // The next generation may start from a later version, which does not include it.
      if (KeepsResiduals()) CADRE_RETURN_IF_ERROR(KeepResidual(0, /*included=*/false));
    }
    averaging_values_.clear();
    has_version_ = true;
    *event = result;
    return absl::OkStatus();
  }

  // A collective. A rank that has just begun has version 0, unless the run starts from a
  // checkpoint, because the weights of a new replica are those of the run's seed. So the frames of
  // all versions are enough for it, if the shards still keep them.
  absl::Status OfferInitial() {
    const bool frames = CodingOf(spec_.averaging().down()) && spec_.checkpoint().from().empty();
    if (!frames || has_version_ || !model_.has_initial_version()) return absl::OkStatus();
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
    CADRE_RETURN_IF_ERROR(GatherPart());
    exchange_->AdoptInitial();
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Pull& pull, std::optional<RankProtocol::Event>* event) {
    Exposure exposure(*this);
    if (!exchange_->begun()) {
      CADRE_RETURN_IF_ERROR(OfferInitial());
      exchange_->BeginPull(pull.version);
    }
    if (pull.background) {
      *event = RankProtocol::Unfinished{};
      return absl::OkStatus();
    }
    Traffic traffic;
    progress_.Enter(v1::ACTIVITY_EXCHANGING);
    bool kept = false;
    CADRE_RETURN_IF_ERROR(FinishPull(pull.version, pull.included, &traffic, &kept));
    has_version_ = true;
    RankProtocol::Pulled result;
    std::vector<bool> leaving;
    CADRE_RETURN_IF_ERROR(SumTraffic(traffic, &result, &leaving));
    CADRE_ASSIGN_OR_RETURN(result.digest, GroupDigest());
    if (result.digest == pull.digest) {
      if (KeepsStates()) options_.states->Adopted(pull.version);
      if (KeepsResiduals()) options_.residuals->Adopted(pull.version);
    }
    step_ = pull.step;
    model_.MoveTo(step_);
    model_.OnAdopted(kept);
    counters_.Add("versions_adopted");
    if (result.digest == pull.digest && !ContributesAgain()) {
      CADRE_RETURN_IF_ERROR(Leave(pull.version, leaving));
    }
    result.exchange_seconds = absl::ToDoubleSeconds(exposure.Take());
    result.transfer_seconds =
        absl::ToDoubleSeconds(std::exchange(transferred_, absl::ZeroDuration()));
    // A decision without a contribution only assigns samples to evaluate.
    const bool contributed = decided_at_ > staged_at_;
    result.wait_seconds = contributed ? absl::ToDoubleSeconds(decided_at_ - staged_at_) : 0;
    result.pull_seconds = absl::ToDoubleSeconds(steady_.Now() - decided_at_);
    *event = result;
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Merge& merge, std::optional<RankProtocol::Event>* /*event*/) {
    const Exposure exposure(*this);
    CADRE_RETURN_IF_ERROR(model_.Fetch(/*states=*/false));
    exchange_->Merge();
    CADRE_RETURN_IF_ERROR(StorePart());
    step_ = merge.step;
    model_.MoveTo(step_);
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Begin& /*begin*/, std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_PREPARING);
    // The states of version 0 are zero, or those of a checkpoint.
    if (start().version() > 0 && KeepsStates()) {
      CADRE_RETURN_IF_ERROR(RestoreStates(start().version()));
    }
    if (start().version() > 0 && KeepsResiduals()) {
      CADRE_RETURN_IF_ERROR(RestoreResidual(start().version()));
    }
    if (!exchange_->has_shards()) CADRE_RETURN_IF_ERROR(model_.LoadCheckpoint({}, failure_));
    CADRE_RETURN_IF_ERROR(model_.Gather());
    if (start().next_step() == 0) {
      CADRE_RETURN_IF_ERROR(
          model_.SaveLast([this](std::string* warning) { return AveragingStates(warning); }));
      averaging_values_.clear();
    }
    model_.Resume();
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Keep& keep, std::optional<RankProtocol::Event>* event) {
    const absl::Time begin = steady_.Now();
    CADRE_RETURN_IF_ERROR(model_.Gather());
    CADRE_RETURN_IF_ERROR(model_.MaybeSave(
        keep.may_be_last, [this](std::string* warning) { return AveragingStates(warning); }));
    averaging_values_.clear();
    waited_ += steady_.Now() - begin;
    *event = RankProtocol::Kept{};
    return absl::OkStatus();
  }

  absl::Status Do(const RankProtocol::Fail& fail, std::optional<RankProtocol::Event>* /*event*/) {
    return failure_.Blame(v1::FAILURE_CAUSE_DIGEST, fail.status);
  }

  absl::Status Do(const RankProtocol::Send& send, std::optional<RankProtocol::Event>* /*event*/) {
    control_.Send(send.report);
    return absl::OkStatus();
  }

  // ---- Evaluation

  absl::Status Do(const RankProtocol::Evaluate& evaluate,
                  std::optional<RankProtocol::Event>* event) {
    progress_.Enter(v1::ACTIVITY_EVALUATING);
    const absl::Time begin = steady_.Now();
    CADRE_ASSIGN_OR_RETURN(RankProtocol::Evaluated result, model_.Evaluate(evaluate, failure_));
    CADRE_ASSIGN_OR_RETURN(result.digest, GroupDigest());
    model_.Resume();
    const absl::Duration time = steady_.Now() - begin;
    result.seconds = absl::ToDoubleSeconds(time);
    waited_ += time;
    *event = result;
    return absl::OkStatus();
  }

  const v1::Assignment& assignment_;
  const v1::RunSpec& spec_;
  const v1::RankSlot& rank_slot_;
  TrainedModel& model_;
  GroupControl& control_;
  Cancellation& cancellation_;
  Counters& counters_;
  const MemberLoopOptions& options_;
  TrainerProgress own_progress_;
  TrainerProgress& progress_;

  std::unique_ptr<Transport> transport_;
  // Declared after the transport, so that it is unregistered before that is destroyed.
  std::unique_ptr<Cancellation::Registration> on_cancel_;
  const SteadyClock steady_;
  // The part of the model that this rank exchanges, in a run that exchanges whole units.
  std::optional<ExchangeUnits> units_;
  std::vector<float> part_values_;
  Owned part_;
  std::optional<Regroup> regroup_;
  // What this rank exchanges: its part, or what it owns.
  std::span<const Owned> exchanged_;
  // The values of MakeAveragingStates.
  std::vector<std::vector<float>> averaging_values_;
  // What was kept last. The memory is used again, because page faults would cost more than copies.
  std::vector<float> residual_;
  // Null: the exchange codes contributions.
  std::unique_ptr<ContributionCoder> coder_;
  std::unique_ptr<ShardExchange> exchange_;
  // The group has adopted a version.
  bool has_version_ = false;

  // Cause of the error that ended training; unspecified: it follows from the status.
  FailureNote failure_;
  RankProtocol protocol_;
  // Steps since the start of the run.
  uint32_t step_ = 0;
  absl::Time period_start_;
  // The newest contribution.
  RankProtocol::Staged contributed_;
  // Time in which the newest round has kept the group from training.
  absl::Duration exposed_;
  // Time in which values were sent and received since the last adoption.
  absl::Duration transferred_;
  // When the newest contribution was acknowledged, and when its decision arrived.
  absl::Time staged_at_;
  absl::Time decided_at_;
  // Time since period_start_ in which the group did not train: rounds, evaluations, checkpoints.
  absl::Duration waited_;
};

}  // namespace

TrainerOutcome RunMemberLoop(const v1::Assignment& assignment, TrainedModel& model,
                             GroupControl& control, Cancellation& cancellation, Counters& counters,
                             const MemberLoopOptions& options) {
  return MemberLoop(assignment, model, control, cancellation, counters, options).Run();
}

}  // namespace cadre
