#include "tests/simulation/simulated_model.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "member/agreement.h"
#include "model/data_position.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

std::vector<Owned> OwnedIn(const std::vector<Interval>& spans, Values& values) {
  std::vector<Owned> owned;
  for (const Interval& span : spans) {
    owned.push_back({span, std::span(values).subspan(span.begin, span.size())});
  }
  return owned;
}

}  // namespace

SimulatedModel::SimulatedModel(World& world, Invariants& invariants, HostConditions& host,
                               absl::Duration step_time, const v1::Assignment& assignment,
                               GroupControl& control, TrainerProgress& progress, Threads& threads)
    : world_(world),
      invariants_(invariants),
      host_(host),
      step_time_(step_time),
      assignment_(assignment),
      control_(control),
      progress_(progress),
      threads_(threads),
      index_(ParameterIndex::FromModel(spec().model()).value()),
      spans_(OwnedSpans(spec(), place().rank(), assignment.peers_size())),
      values_(InitialValues(spec())),
      states_(values_.size()),
      owned_(OwnedIn(spans_, values_)),
      changes_(world, invariants.conservation(), assignment, spans_),
      batches_(invariants.conservation().samples(), assignment) {}

absl::Status SimulatedModel::Sleep(absl::Duration time) {
  threads_.Await([] { return false; }, world_.timeline.now() + time);
  return threads_.killed() ? absl::CancelledError("the process was killed") : absl::OkStatus();
}

absl::Status SimulatedModel::CheckHost(v1::FailureCause cause, FailureNote& failure) const {
  if (host_.bad <= world_.timeline.now() || host_.cause != cause) return absl::OkStatus();
  return failure.Blame(cause, absl::FailedPreconditionError("the host is bad"));
}

// ---- Before training

absl::Status SimulatedModel::Open(FailureNote& failure) {
  absl::Duration time = world_.dice.Between(absl::ZeroDuration(), absl::Milliseconds(300));
  if (host_.slow_preparation > world_.timeline.now()) {
    time += host_.preparation;
    host_.busy = std::max(host_.busy, world_.timeline.now() + time);
  }
  CADRE_RETURN_IF_ERROR(Sleep(time));
  return CheckHost(v1::FAILURE_CAUSE_DATA, failure);
}

absl::Status SimulatedModel::Prepare(Transport& transport, const RankProtocol& protocol,
                                     FailureNote& failure) {
  protocol_ = &protocol;
  changes_.Enter();
  group_.reset(new Communicator(WholeGroup(transport)));
  return CheckHost(v1::FAILURE_CAUSE_MEMORY, failure);
}

v1::Prepared SimulatedModel::Describe() const {
  v1::Prepared prepared;
  prepared.set_train_samples(spec().data().synthetic().train_samples());
  prepared.set_test_samples(spec().data().synthetic().test_samples());
  if (lead()) {
    // Rank 0 reports a measured link.
    *prepared.mutable_plan() = assignment_.plan();
    prepared.mutable_plan()->mutable_link()->set_alpha(1e-5);
    prepared.mutable_plan()->mutable_link()->set_beta(1e-9);
  }
  return prepared;
}

void SimulatedModel::StartAt(uint32_t step) {
  step_ = step;
  training_ = true;
  if (!threads_.killed()) invariants_.OnTraining(place(), /*begins=*/true);
}

// ---- Versions

void SimulatedModel::ReportHeld(uint32_t version) {
  if (world_.plant == Plant::kIgnoreVersion && !adopted_.empty()) values_ = adopted_;
  adopted_ = values_;
  held_ = version;
  if (threads_.killed()) return;
  invariants_.OnHeld(place(), version, values_, spans_);
  changes_.OnHeld(version, protocol_->decision(), values_);
  batches_.OnAdopted(step_);
}

absl::Status SimulatedModel::LoadCheckpoint(const std::vector<AveragingState>& /*averaging*/,
                                            FailureNote& /*failure*/) {
  // A run that does not average has no versions.
  if (assignment_.shards_size() > 0) ReportHeld(0);
  return absl::OkStatus();
}

// The digest is checked before the protocol continues, which may end the session.
void SimulatedModel::OnAdopted(bool /*kept*/) { ReportHeld(protocol_->decision().version()); }

absl::Status SimulatedModel::Store(bool states) {
  if (!states) return absl::OkStatus();
  for (const Interval& span : spans_) {
    for (int64_t p = span.begin; p < span.end; ++p) {
      const float state = states_[p];
      if (state != 0 && !IsStateOf(p, state)) {
        world_.Violate(simulation::Describe(place()),
                       " has restored the state of another position at ", p);
      }
      if (RoundOfState(state) <= protocol_->version()) continue;
      world_.Violate(simulation::Describe(place()), " starts from version ", protocol_->version(),
                     " with states of round ", RoundOfState(state));
    }
  }
  return absl::OkStatus();
}

void SimulatedModel::Resume() {
  if (!threads_.killed()) changes_.OnRestored();
}

StateVault::States SimulatedModel::States() {
  StateVault::States states;
  states.tensors.push_back(OwnedIn(spans_, states_));
  for (const Interval& span : spans_) states.updates.push_back({span, step_});
  return states;
}

void SimulatedModel::RestoreStates(const StateVault::States& /*states*/) {
  world_.Count("states_restored");
}

// Merged values are those of steps after the version's.
void SimulatedModel::MoveTo(uint32_t step) {
  if (step > protocol_->decision().step()) world_.Count("versions_merged");
  step_ = step;
}

// ---- Training

absl::StatusOr<uint32_t> SimulatedModel::Train(const RankProtocol::Train& train,
                                               FailureNote& /*failure*/) {
  if (protocol_->solo_steps() > 0 && lead()) world_.Count("solo_steps", train.until - step_);
  while (step_ < train.until) CADRE_RETURN_IF_ERROR(TrainStep());
  return step_;
}

absl::Status SimulatedModel::TrainStep() {
  progress_.Enter(v1::ACTIVITY_TRAINING);
  if (!threads_.killed()) changes_.OnStep(values_);
  if (lead()) {
    const bool first = world_.plant == Plant::kIgnoreDivision;
    batches_.OnStep(first ? InitialDivision(spec()) : protocol_->division(), step_);
  }
  ++steps_begun_;
  if (staged_round_ > protocol_->version()) world_.Count("steps_during_exchanges");
  CADRE_RETURN_IF_ERROR(Sleep(step_time_ * world_.dice.Between(50, 150) / 100));
  if (std::exchange(host_.diverges, false)) return absl::OutOfRangeError("the loss is NaN");
  progress_.Advance();
  CADRE_RETURN_IF_ERROR(group().Barrier());
  ++step_;
  if (world_.plant != Plant::kContributeUntrained) ChangeValues();
  changes_.OnTrained(values_);
  progress_.Advance();
  TraceStep();
  MaybeReport();
  return absl::OkStatus();
}

void SimulatedModel::ChangeValues() {
  for (const Interval& span : spans_) {
    for (int64_t p = span.begin; p < span.end; ++p) {
      values_[p] += StepChange(place().group(), place().generation(), p);
      states_[p] = StateOf(p, protocol_->version() + 1);
    }
  }
}

void SimulatedModel::MaybeReport() {
  if (!lead()) return;
  if (world_.dice.Chance(0.2)) {
    v1::Progress progress;
    *progress.mutable_place() = place();
    progress.set_step(step_);
    progress.set_solo_steps(protocol_->solo_steps());
    control_.Send(progress);
  }
  if (!world_.dice.Chance(0.05)) return;
  const double seconds = world_.dice.Between(50, 2000) * 1e-3;
  v1::Measured measured;
  *measured.mutable_place() = place();
  measured.mutable_times()->set_step(seconds);
  measured.mutable_times()->set_compute(seconds);
  v1::LayerTime& layer = *measured.mutable_layers()->add_time();
  layer.set_layer("fc1");
  layer.set_samples(1);
  layer.set_forward(seconds);
  control_.Send(measured);
}

void SimulatedModel::TraceStep() {
  if (tracing_.has_value()) {
    tracing_->add_events()->set_step(step_);
    if (--trace_steps_left_ == 0) {
      control_.Send(*tracing_);
      tracing_.reset();
    }
  }
  if (tracing_.has_value()) return;
  const std::optional<v1::TraceSteps> request = control_.TakeTraceRequest();
  if (!request.has_value()) return;
  tracing_.emplace();
  *tracing_->mutable_place() = request->place();
  tracing_->set_request(request->request());
  trace_steps_left_ = request->steps();
}

PeriodReport SimulatedModel::TakePeriod() {
  staged_round_ = protocol_->version() + 1;
  if (!threads_.killed()) {
    changes_.OnStage(staged_round_, protocol_->decision().fragment(), values_);
    if (lead()) batches_.OnStage(staged_round_, step_);
  }
  return {.rate = 0.5F};
}

absl::StatusOr<RankProtocol::Evaluated> SimulatedModel::Evaluate(
    const RankProtocol::Evaluate& evaluate, FailureNote& /*failure*/) {
  CADRE_RETURN_IF_ERROR(Sleep(world_.dice.Between(absl::ZeroDuration(), absl::Milliseconds(500))));
  const int64_t samples = evaluate.end - evaluate.begin;
  return RankProtocol::Evaluated{.correct = samples / 2, .labels = samples};
}

}  // namespace cadre::simulation
