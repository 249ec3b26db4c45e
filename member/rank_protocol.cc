#include "member/rank_protocol.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "model/coding.h"
#include "model/data_position.h"
#include "model/opaque.h"
#include "model/training_metrics.h"

namespace cadre {

RankProtocol::Actions RankProtocol::Handle(const Event& event) {
  return std::visit([this](const auto& one) { return On(one); }, event);
}

// The first version is adopted like that of a decision.
RankProtocol::Actions RankProtocol::On(const Started& started) {
  start_ = started.start;
  const v1::Start& start = start_;
  train_samples_ =
      started.train_samples > 0 ? started.train_samples : started.start.train_samples();
  division_ = start.division();
  total_steps_ = start.total_steps();
  decision_.set_version(start.version());
  decision_.set_step(start.step());
  decision_.set_digest(start.digest());
  decision_.set_evaluate_begin(start.evaluate_begin());
  decision_.set_evaluate_end(start.evaluate_end());
  decision_.set_next_step(start.next_step());
  decision_.set_catch_up(start.catch_up());
  decision_.set_fragment(start.fragment());
  decision_.set_agree_steps(start.agree_steps());
  step_ = start.step();
  version_ = start.version();
  if (assignment_.shards_size() == 0) return {Begin{}};
  if (start.version() == 0 && BeginsWithGroupValues(assignment_.spec())) return StageInitial();
  // Programs do not know how the initial weights are computed.
  const bool computes = !assignment_.plan().own_loop();
  if (start.version() == 0 && computes) return {Initialize{}};
  return PullDecided();
}

RankProtocol::Actions RankProtocol::EvaluateAndTrain(uint64_t begin, uint64_t end,
                                                     uint32_t next_step) {
  next_step_ = next_step;
  evaluate_ = {begin, end};
  if (begin < end) return {evaluate_};
  return BeginPeriod();
}

RankProtocol::Actions RankProtocol::On(const Evaluated& evaluated) {
  v1::Evaluated message;
  message.set_version(version_);
  message.set_begin(evaluate_.begin);
  message.set_end(evaluate_.end);
  message.set_correct(evaluated.correct);
  message.set_labels(evaluated.labels);
  message.set_loss_sum(evaluated.loss_sum);
  message.set_digest(evaluated.digest);
  message.set_seconds(static_cast<float>(evaluated.seconds));
  Actions actions = SendFromLead(std::move(message));
  for (Action& action : BeginPeriod()) actions.push_back(std::move(action));
  return actions;
}

// A period consists of the steps between two boundaries. Those since the boundary of the version
// that was just adopted have been trained already. A group that has missed rounds may have trained
// more of them than are left until the next boundary: it contributes them all.
RankProtocol::Actions RankProtocol::BeginPeriod() {
  solo_steps_ = 0;
  if (next_step_ == 0) return {AwaitDecision{.run_ended = true}};
  period_steps_ = std::exchange(trained_ahead_, 0);
  if (!std::exchange(merges_, false)) return TrainOn(/*resumes=*/false);
  step_ += std::min(period_steps_, next_step_ - std::min(step_, next_step_));
  Actions actions = {Merge{.step = step_}};
  for (Action& action : TrainOn(/*resumes=*/true)) actions.push_back(std::move(action));
  return actions;
}

RankProtocol::Actions RankProtocol::TrainOn(bool resumes) {
  const uint32_t agree = decision_.catch_up() ? 1 : decision_.agree_steps();
  const bool agrees = agree > 0 && step_ < next_step_ && agree < next_step_ - step_;
  return TrainUntil(agrees ? step_ + agree : next_step_, resumes);
}

RankProtocol::Actions RankProtocol::TrainUntil(uint32_t step, bool resumes) {
  until_ = std::max(step_, step);
  return {Train{.until = until_, .resumes = resumes}};
}

RankProtocol::Actions RankProtocol::On(const Trained& trained) {
  const uint32_t reached = trained.leaves ? trained.step : until_;
  period_steps_ += reached - step_;
  step_ = reached;
  if (trained.leaves) adoption_ = std::min(adoption_, step_);
  if (exchange_ != Exchange::kNone) return {AwaitRound()};
  if (trained.leaves) {
    return period_steps_ > 0 ? StageNext(/*leaves=*/true) : Actions{Leave{}};
  }
  if (step_ < next_step_) {
    return {AskNudge{.round = version_ + 1, .steps = next_step_ - step_}};
  }
  return StageUnlessSolo();
}

RankProtocol::Actions RankProtocol::On(const Nudged& nudged) {
  if (nudged.nudged || nudged.leaves) return StageNext(nudged.leaves);
  return TrainOn(/*resumes=*/true);
}

// While the coordinator is unreachable the group continues to train. Nothing has been staged yet,
// so the later contribution simply covers more steps.
RankProtocol::Actions RankProtocol::StageUnlessSolo() {
  if (SoloSteps() > 0) return {AskPresence{}};
  return StageNext();
}

uint32_t RankProtocol::SoloSteps() const {
  const v1::Averaging& averaging = assignment_.spec().averaging();
  // The coordinator rejects steps beyond the end of the run. 0: the run has no last step.
  const uint32_t last = total_steps_ > 0 ? total_steps_ : std::numeric_limits<uint32_t>::max();
  if (solo_steps_ >= averaging.max_solo_steps() || step_ >= last) return 0;
  // The others wait for a group that catches up, so it contributes as soon as rank 0 is back.
  const uint32_t steps = decision_.catch_up() ? 1 : std::max(1U, StepsOfRound(averaging));
  return std::min({steps, averaging.max_solo_steps() - solo_steps_, last - step_});
}

RankProtocol::Actions RankProtocol::On(const Presence& presence) {
  if (!presence.away) return StageNext();
  const uint32_t steps = SoloSteps();
  solo_steps_ += steps;
  return TrainUntil(step_ + steps, /*resumes=*/true);
}

// A group that leaves does not train further while the round is exchanged.
RankProtocol::Actions RankProtocol::StageNext(bool leaves) {
  const uint32_t last = total_steps_ > 0 ? total_steps_ : std::numeric_limits<uint32_t>::max();
  const uint32_t overlap = leaves ? 0 : assignment_.spec().averaging().overlap().steps();
  exchange_ = Exchange::kStaging;
  leaves_ = leaves;
  fragment_ = decision_.fragment();
  boundary_ = step_;
  // The version is that of the boundary, also if the group stops before it; no step follows the
  // last.
  adoption_ = step_ + std::min(overlap, last - std::min(std::max(step_, next_step_), last));
  contributed_steps_ = std::exchange(period_steps_, 0);
  return {Stage{.round = version_ + 1,
                .base_version = version_,
                .samples = uint64_t{contributed_steps_} * assignment_.spec().batch_per_group(),
                .fragment = fragment_,
                .background = step_ < adoption_}};
}

RankProtocol::Actions RankProtocol::StageInitial() {
  exchange_ = Exchange::kStaging;
  boundary_ = step_;
  contributed_steps_ = 0;
  return {Stage{.round = 1, .samples = 1, .initial = true}};
}

RankProtocol::Actions RankProtocol::On(const Unfinished& /*unfinished*/) {
  const bool pulling = exchange_ == Exchange::kPulling;
  return TrainUntil(pulling ? adoption_ : step_ + 1, /*resumes=*/true);
}

RankProtocol::Action RankProtocol::AwaitRound() const {
  const bool wait = step_ >= adoption_;
  switch (exchange_) {
    case Exchange::kStaging:
      return AwaitStaged{.wait = wait};
    case Exchange::kPulling:
      return PullNow();
    default:
      return AwaitDecision{.wait = wait};
  }
}

RankProtocol::Actions RankProtocol::On(const Staged& staged) {
  exchange_ = Exchange::kDeciding;
  v1::Contributed message;
  message.set_round(version_ + 1);
  message.set_base_version(version_);
  message.set_step(boundary_);
  // The first values of a run have no samples, but a contribution must have a weight.
  const bool initial = version_ == 0 && BeginsWithGroupValues(assignment_.spec());
  message.set_samples(
      initial ? 1 : uint64_t{contributed_steps_} * assignment_.spec().batch_per_group());
  if (staged.loss) message.set_loss(static_cast<float>(*staged.loss));
  message.set_train_seconds(staged.train_seconds);
  message.set_stage_seconds(static_cast<float>(staged.stage_seconds));
  message.set_rate(staged.rate);
  if (HasMetrics(staged.metrics)) *message.mutable_metrics() = staged.metrics;
  message.set_payload_bytes(staged.payload_bytes);
  message.set_message_bytes(staged.message_bytes);
  message.set_leaves(leaves_);
  Actions actions = SendFromLead(std::move(message));
  actions.push_back(AwaitRound());
  return actions;
}

RankProtocol::Actions RankProtocol::On(const Decided& decided) {
  decision_ = decided.decision;
  if (!decision_.adopt()) return {KeepWeights()};
  // The group has the version already if the decision only assigns other samples to evaluate.
  const bool has_trained = exchange_ != Exchange::kNone && contributed_steps_ + period_steps_ > 0;
  if (decision_.version() == version_ && !has_trained) {
    UpdateDivision();
    return On(Kept{});
  }
  return PullDecided();
}

// If the number of groups has changed, the steps since the boundary were trained with samples that
// now belong to others; if the version is of an earlier step than the boundary, which the others
// did not wait for, with samples that this group trains again; if the contribution was screened,
// with weights that may be wrong. What they have changed is discarded, with all values that are not
// those of the version.
void RankProtocol::UpdateDivision() {
  if (!discards_steps_ahead()) return;
  division_ = decision_.division();
  total_steps_ = TotalSteps(assignment_.spec(), division_, train_samples_);
  period_steps_ = 0;
  merges_ = false;
}

RankProtocol::Actions RankProtocol::PullDecided() {
  exchange_ = Exchange::kPulling;
  Pull pull = PullNow();
  pull.background = step_ < adoption_;
  return {pull};
}

RankProtocol::Pull RankProtocol::PullNow() const {
  return {.version = decision_.version(),
          .step = decision_.step(),
          .digest = decision_.digest(),
          .included = decision_.included(),
          .screened = decision_.refusal() == v1::REFUSAL_SCREENED};
}

RankProtocol::Actions RankProtocol::On(const Pulled& pulled) {
  v1::Adopted message;
  message.set_version(decision_.version());
  message.set_digest(pulled.digest);
  message.set_payload_bytes(pulled.payload_bytes);
  message.set_message_bytes(pulled.message_bytes);
  if (begun_) {
    message.set_exchange_seconds(static_cast<float>(pulled.exchange_seconds));
    message.set_wait_seconds(static_cast<float>(pulled.wait_seconds));
    message.set_pull_seconds(static_cast<float>(pulled.pull_seconds));
    message.set_transfer_seconds(static_cast<float>(pulled.transfer_seconds));
  }
  Actions actions = SendFromLead(std::move(message));
  if (pulled.digest != decision_.digest()) {
    actions.push_back(Fail{absl::DataLossError(absl::StrCat(
        "version ", decision_.version(), begun_ || version_ > 0 ? " as pulled" : " as computed",
        " has digest ", DigestHex(pulled.digest), ", committed was ",
        DigestHex(decision_.digest())))});
    return actions;
  }
  merges_ = begun_ && (period_steps_ > 0 || fragment_ > 0);
  UpdateDivision();
  trained_ahead_ = period_steps_;
  adoption_ = 0;
  version_ = decision_.version();
  step_ = decision_.step();
  if (begun_) {
    actions.push_back(KeepWeights());
  } else {
    actions.emplace_back(std::in_place_type<Begin>);
  }
  return actions;
}

// The accuracy of an evaluated version may end the run, so that version is saved beforehand.
RankProtocol::Action RankProtocol::KeepWeights() const {
  const bool evaluated = decision_.evaluate_begin() < decision_.evaluate_end();
  const bool accuracy_ends = assignment_.spec().stop().test_accuracy() > 0 && evaluated;
  return Keep{.may_be_last = decision_.next_step() == 0 || accuracy_ends};
}

RankProtocol::Actions RankProtocol::On(const Kept& /*kept*/) {
  begun_ = true;
  exchange_ = Exchange::kNone;
  period_steps_ = 0;
  return EvaluateAndTrain(decision_.evaluate_begin(), decision_.evaluate_end(),
                          decision_.next_step());
}

template <typename Report>
RankProtocol::Actions RankProtocol::SendFromLead(Report report) const {
  if (assignment_.place().rank() != 0) return {};
  *report.mutable_place() = assignment_.place();
  return {Send{std::move(report)}};
}

}  // namespace cadre
