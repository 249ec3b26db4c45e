// What a rank does from the start of its group to the end of the generation, as a pure state
// machine: when it trains, contributes, adopts a version, evaluates, and what it reports.
//
//   RankProtocol protocol(assignment);
//   RankProtocol::Actions actions = protocol.Handle(RankProtocol::Started{start});
//
// Handle returns messages to send and, last, one action to carry out; its completion is the next
// event. The training loop carries actions out on its thread (worker/train/trainer), the simulation
// in virtual time. Errors are not events: they end the generation.
//
// clang-format off
//   Started -> [Initialize | Pull] -> Begin -> [Evaluate] -> Train -> [AskPresence -> Train ...]
//           -> Stage -> AwaitDecision -> [Pull] -> [Keep] -> [Evaluate] -> Train ...
//                                                      or AwaitDecision, if the run has ended
// clang-format on
//
// With averaging.overlap, the exchange of a round runs in the background of the steps that follow
// the boundary. Between them the ranks agree on how far it is, and at a fixed step, the adoption,
// they wait for it:
//
// clang-format off
//   Stage  -> Train -> AwaitStaged   -> [Unfinished -> Train -> AwaitStaged ...]
//          -> AwaitDecision -> [Unfinished -> Train -> AwaitDecision ...]
//          -> Pull -> Train to the adoption -> Pull -> [Keep] -> [Evaluate] -> Merge, Train ...
// clang-format on
//
// With averaging.fragments, a round exchanges a part of the model. The group adopts the whole
// version all the same, so that it can be checked, saved and evaluated, and restores its own values
// of the other fragments with Merge.
//
// In a period in which the group catches up with the others (Start.catch_up), Train is one step,
// and AskNudge follows until the group is nudged or reaches the boundary. In groups of several
// ranks, AskNudge also follows every agree_steps steps (v1::Start): the group contributes before
// the boundary, too, if one of its ranks leaves soon. A single rank stops by itself, and so do all
// ranks of a program that ends its loop:
//
//   Train -> Trained.leaves -> Stage -> AwaitDecision -> Pull -> Train -> Trained.leaves -> Leave
//
// Thread-compatible.
//
// Requires: all ranks of a group handle equal events, apart from measurements, which only appear in
// messages. Guarantees: they then receive equal actions, so that all of them call the same
// collectives; rank 0 alone sends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "member/group_control.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class RankProtocol {
 public:
  // ---- Events

  struct Started {
    v1::Start start;
    // Size of the training split; 0: that of Start.
    uint64_t train_samples = 0;
  };
  // The step of Train is reached or, with `leaves`, this step: no more steps follow, because the
  // only rank of the group leaves, or because the program has ended its loop.
  struct Trained {
    bool leaves = false;
    uint32_t step = 0;
  };
  // Whether rank 0 cannot reach the coordinator.
  struct Presence {
    bool away = false;
  };
  // Whether the other groups wait for the contribution, and whether a rank leaves soon.
  struct Nudged {
    bool nudged = false;
    bool leaves = false;
  };
  // An exchange in the background continues, or there is no decision yet.
  struct Unfinished {};
  // All ranks have staged their values.
  struct Staged {
    std::optional<double> loss;
    double train_seconds = 0;
    // From the end of training until all values were acknowledged.
    double stage_seconds = 0;
    // Learning rate of the last step.
    float rate = 0;
    v1::TrainingMetrics metrics;
    uint64_t payload_bytes = 0;
    uint64_t message_bytes = 0;
  };
  struct Decided {
    v1::Decision decision;
  };
  // All ranks have the version; the digest of what they have.
  struct Pulled {
    uint64_t digest = 0;
    uint64_t payload_bytes = 0;
    uint64_t message_bytes = 0;
    // In which the round kept the group from training.
    double exchange_seconds = 0;
    // Between the acknowledgement of the contribution and the decision, and for receiving the
    // version.
    double wait_seconds = 0;
    double pull_seconds = 0;
    // In which values were sent and received (v1::Adopted).
    double transfer_seconds = 0;
  };
  struct Kept {};
  struct Evaluated {
    int64_t correct = 0;
    int64_t labels = 0;
    double loss_sum = 0;
    uint64_t digest = 0;
    double seconds = 0;
  };
  using Event = std::variant<Started, Trained, Presence, Nudged, Unfinished, Staged, Decided,
                             Pulled, Kept, Evaluated>;

  // ---- Actions

  // Train until this step. `resumes`: in the same period, with weights that were not gathered at
  // the end of the previous Train.
  struct Train {
    uint32_t until = 0;
    bool resumes = false;
  };
  // Agree on whether rank 0 can reach the coordinator.
  struct AskPresence {};
  // Agree on whether rank 0 has received Nudge for this round, and on whether a rank leaves before
  // the boundary, which is `steps` away.
  struct AskNudge {
    uint32_t round = 0;
    uint32_t steps = 0;
  };
  // Stage the owned values for a round. A run that does not average stages nothing.
  // `fragment`: what the round exchanges (v1::Start). `background`: begin to stage a copy of them;
  // the event is Unfinished.
  struct Stage {
    uint32_t round = 0;
    uint32_t base_version = 0;
    uint64_t samples = 0;
    uint32_t fragment = 0;
    bool background = false;
    // The values are the first version of the run (model/opaque.h), not a contribution to a mean.
    bool initial = false;
  };
  // Agree on whether all ranks have staged what they stage in the background. Unless `wait` is
  // true, the event may be Unfinished.
  struct AwaitStaged {
    bool wait = true;
  };
  // Agree on rank 0's next decision. `run_ended`: no more steps follow. Unless `wait` is true, the
  // event may be Unfinished.
  struct AwaitDecision {
    bool run_ended = false;
    bool wait = true;
  };
  // Make version 0, which every rank computes from the spec or loads from the run's checkpoint. The
  // event is Pulled.
  struct Initialize {};
  // Receive a version and overwrite the weights with it. `background`: begin to receive it; the
  // event is Unfinished, and another Pull of the version follows.
  struct Pull {
    uint32_t version = 0;
    uint32_t step = 0;
    uint64_t digest = 0;
    // Whether the version includes the group's last contribution.
    bool included = false;
    // Whether it does not because of what that contains.
    bool screened = false;
    bool background = false;
  };
  // Merge the weights with what the group has learned between the boundary and the adoption and, of
  // what the round has not exchanged, since earlier rounds; continue at this step.
  struct Merge {
    uint32_t step = 0;
  };
  // Gather the weights. A run that does not average loads the checkpoint from which it starts, if
  // any. The event is Kept.
  struct Begin {};
  // Continue with the weights that the ranks own, and save a checkpoint if one is due.
  // `may_be_last`: the run may end here.
  struct Keep {
    bool may_be_last = false;
  };
  // Evaluate test samples [begin, end).
  struct Evaluate {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // All ranks leave; there is nothing to contribute.
  struct Leave {};
  struct Send {
    TrainingReport report;
  };
  // End the generation with FAILURE_CAUSE_DIGEST.
  struct Fail {
    absl::Status status;
  };
  using Action = std::variant<Train, AskPresence, AskNudge, Stage, AwaitStaged, AwaitDecision,
                              Initialize, Pull, Merge, Begin, Keep, Evaluate, Leave, Send, Fail>;
  using Actions = std::vector<Action>;

  // Borrows the assignment.
  explicit RankProtocol(const v1::Assignment& assignment) : assignment_(assignment) {}

  Actions Handle(const Event& event);

  const v1::Start& start() const { return start_; }
  // How the groups share the samples from the adopted version on, and the total steps that follow.
  const v1::SampleDivision& division() const { return division_; }
  uint32_t total_steps() const { return total_steps_; }
  // The newest decision; at first, what Start decides.
  const v1::Decision& decision() const { return decision_; }
  // The version that training continues from, and the steps since the start of the run.
  uint32_t version() const { return version_; }
  uint32_t step() const { return step_; }
  // The next boundary; 0: the run has ended.
  uint32_t next_boundary() const { return next_step_; }
  // At an adoption: steps since the contribution, and whether they are discarded (UpdateDivision).
  uint32_t steps_ahead() const { return period_steps_; }
  bool discards_steps_ahead() const {
    return decision_.division().step() > division_.step() || decision_.step() < boundary_ ||
           decision_.refusal() == v1::REFUSAL_SCREENED;
  }
  // Steps beyond the boundary while the coordinator was away.
  uint32_t solo_steps() const { return solo_steps_; }

 private:
  Actions On(const Started& started);
  Actions On(const Trained& trained);
  Actions On(const Presence& presence);
  Actions On(const Nudged& nudged);
  Actions On(const Unfinished& unfinished);
  Actions On(const Staged& staged);
  Actions On(const Decided& decided);
  Actions On(const Pulled& pulled);
  Actions On(const Kept& kept);
  Actions On(const Evaluated& evaluated);

  // Trains until the boundary, or one step while the group catches up.
  Actions TrainOn(bool resumes);
  Actions TrainUntil(uint32_t step, bool resumes);
  Actions StageUnlessSolo();
  // Begins a round at the boundary or, with `leaves`, where the group stops.
  Actions StageNext(bool leaves = false);
  // Begins the round from which the run takes its first values.
  Actions StageInitial();
  // Continues with the version of the decision, at the adoption at the earliest.
  Actions PullDecided();
  Pull PullNow() const;
  // What follows a step or a part of the exchange of a round.
  Action AwaitRound() const;
  void UpdateDivision();
  Action KeepWeights() const;
  // Evaluates samples [begin, end), then trains to `next_step`.
  Actions EvaluateAndTrain(uint64_t begin, uint64_t end, uint32_t next_step);
  Actions BeginPeriod();
  // The number of steps that the group may train solo from here.
  uint32_t SoloSteps() const;
  // Sends `report` with the rank slot, if this is rank 0.
  template <typename Report>
  Actions SendFromLead(Report report) const;

  const v1::Assignment& assignment_;
  v1::Start start_;
  uint64_t train_samples_ = 0;
  v1::SampleDivision division_;
  uint32_t total_steps_ = 0;
  // The newest decision; at first, what Start decides.
  v1::Decision decision_;
  bool begun_ = false;
  uint32_t version_ = 0;
  uint32_t step_ = 0;
  // The step to which the rank trains.
  uint32_t until_ = 0;
  // The next boundary; 0: the run has ended.
  uint32_t next_step_ = 0;
  Evaluate evaluate_;
  // Steps since the last boundary.
  uint32_t period_steps_ = 0;
  // Where the exchange of a round is. Not kNone: the boundary of the round, the steps that it
  // contributes, and the step at which the group waits for it.
  enum class Exchange { kNone, kStaging, kDeciding, kPulling };
  Exchange exchange_ = Exchange::kNone;
  uint32_t boundary_ = 0;
  uint32_t contributed_steps_ = 0;
  bool leaves_ = false;
  uint32_t adoption_ = 0;
  // Steps between the boundary of the adopted version and its adoption, and whether the group
  // continues with values of its own beside those of the version.
  uint32_t trained_ahead_ = 0;
  bool merges_ = false;
  // What the newest round of the group has exchanged.
  uint32_t fragment_ = 0;
  uint32_t solo_steps_ = 0;
};

}  // namespace cadre
