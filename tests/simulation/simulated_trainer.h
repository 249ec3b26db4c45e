// The simulated trainer of one rank in one generation. It carries out the actions of the real
// member/rank_protocol, with the exchanges and collectives of worker/train/trainer, but does
// not train: time passes and the values of the model change.
//
// Thread-compatible.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "member/rank_protocol.h"
#include "member/trainer_progress.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/group_fabric.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/model.h"
#include "tests/simulation/simulated_exchange.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class SimulatedTrainer {
 public:
  struct Callbacks {
    std::function<void(const TrainingReport&)> send;
    std::function<bool()> connected;
    // Called when the generation has ended for this rank, by a failure or a cancellation. Of the
    // report, cause and suspects are set.
    std::function<void(const absl::Status&, const v1::GroupFailed&)> ended;
  };

  SimulatedTrainer(World& world, Network& network, Fabrics& fabrics, Directory& directory,
                   Invariants& invariants, const std::string& host, absl::Duration step_time,
                   TrainerProgress& progress, v1::Assignment assignment, Callbacks callbacks);

  void Run();
  void Deliver(const v1::Start& start);
  void Deliver(const v1::Decision& decision);
  void Deliver(const v1::Nudge& nudge);
  void Deliver(const v1::TraceSteps& trace);
  void Deliver(const v1::Restage& restage);
  void MoveShards(const v1::ShardAddresses& shards);
  void Cancel(const std::string& reason);
  // The process has ended, without any notification.
  void Die(bool host_lost);

  const v1::RankSlot& place() const { return assignment_.place(); }
  bool running() const { return running_; }
  uint32_t version() const { return protocol_.version(); }
  uint64_t steps_begun() const { return steps_begun_; }
  // The newest round to which the rank has begun to contribute; 0: none.
  uint32_t staged_round() const { return staged_round_; }
  // Rank 0 can only wait for the decision of that round.
  bool awaits_decision() const { return awaiting_decision_; }

 private:
  using Next = std::function<void()>;
  using NextInputs = std::function<void(const std::vector<std::string>&)>;

  bool lead() const { return place().rank() == 0; }
  const v1::RunSpec& spec() const { return assignment_.spec(); }
  void Pause(absl::Duration at_most, Next next);
  void Collective(const std::string& kind, std::string input, NextInputs next);
  void End(const absl::Status& status, v1::FailureCause cause,
           const std::vector<uint32_t>& suspects = {});
  // Fails if the host's conditions have this cause.
  bool FailsBy(v1::FailureCause cause);

  void OpenData();
  void Connect();
  void Prepare();
  // Rank 0's Start is used: those of the other ranks may differ.
  void AgreeOnStart();
  void BeginTraining();
  // Carries out the actions for this event, and then those for the event of the last of them.
  void Handle(const RankProtocol::Event& event);
  void Do(const RankProtocol::Train& train);
  void Do(const RankProtocol::AskPresence& ask);
  void Do(const RankProtocol::AskNudge& ask);
  void Do(const RankProtocol::Stage& stage);
  void Do(const RankProtocol::AwaitStaged& await);
  void Do(const RankProtocol::AwaitDecision& await);
  void Do(const RankProtocol::Initialize& initialize);
  void Do(const RankProtocol::Pull& pull);
  void Do(const RankProtocol::Merge& merge);
  void Do(const RankProtocol::Begin& begin);
  void Do(const RankProtocol::Keep& keep);
  void Do(const RankProtocol::Evaluate& evaluate);
  void Do(const RankProtocol::Send& send);
  void Do(const RankProtocol::Fail& fail);
  // Simulated ranks do not leave.
  void Do(const RankProtocol::Leave& leave);
  void TrainStep(uint32_t until);
  void AgreeThatAllStaged();
  // Continues when the exchange that was begun last has ended.
  void AfterExchange(Next next);
  // Rank 0 reports random step times at random steps.
  void MaybeMeasure();
  // Adds the last step to the trace in progress, as one event.
  void TraceStep();
  v1::PullRequest RequestFor(uint32_t version) const;
  v1::ContributionHeader HeaderFor(uint32_t round, uint64_t samples) const;
  // The digest of the model that the ranks hold together.
  void GroupDigest(const std::string& kind, std::function<void(uint64_t)> next);

  World& world_;
  Invariants& invariants_;
  const v1::Assignment assignment_;
  HostConditions& host_;
  TrainerProgress& progress_;
  const Callbacks callbacks_;
  const absl::Duration step_time_;
  const std::vector<int64_t> begins_;
  const std::vector<Interval> owned_;
  std::shared_ptr<GroupFabric> fabric_;
  // The version adopted last, and the model after training.
  Values base_;
  Values trained_;
  SimulatedExchange exchange_;
  RankProtocol protocol_;
  Lifetime life_;
  bool running_ = false;
  bool ended_ = false;

  std::optional<v1::Start> start_;
  bool awaiting_start_ = false;
  std::deque<v1::Decision> decisions_;
  bool awaiting_decision_ = false;
  uint32_t nudged_round_ = 0;
  std::optional<v1::TraceSteps> trace_request_;
  // The trace in progress, if any, and the number of steps that it still needs.
  std::optional<v1::Traced> tracing_;
  uint32_t trace_steps_left_ = 0;

  uint32_t step_ = 0;
  uint64_t steps_begun_ = 0;
  uint32_t staged_round_ = 0;
  // An exchange with the shards is under way; what waits for it; the version that is being pulled.
  bool exchanging_ = false;
  Next waiting_for_exchange_;
  std::optional<uint32_t> pulling_;
  // Those that are being carried out.
  std::set<std::tuple<uint32_t, uint32_t, bool>> restages_;
};

}  // namespace cadre::simulation
