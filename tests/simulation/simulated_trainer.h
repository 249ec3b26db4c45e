// The simulated trainer of one rank in one generation. It has the messages, exchanges and
// collectives of worker/train/trainer in the same order, but does not train: time passes and the
// words of the model change.
//
// Thread-compatible.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
    std::function<void(const v1::Prepared&)> prepared;
    std::function<void(const v1::Progress&)> progress;
    std::function<void(const v1::Measured&)> measured;
    std::function<void(const v1::Contributed&)> contributed;
    std::function<void(const v1::Adopted&)> adopted;
    std::function<void(const v1::Evaluated&)> evaluated;
    std::function<void(const v1::Traced&)> traced;
    std::function<bool()> connected;
    // Called when the generation has ended for this rank, by a failure or a cancellation.
    std::function<void(const absl::Status&)> ended;
  };

  SimulatedTrainer(World& world, Network& network, Fabrics& fabrics, Directory& directory,
                   Invariants& invariants, const std::string& host, absl::Duration step_time,
                   v1::Assignment assignment, Callbacks callbacks);

  void Run();
  void Deliver(const v1::Start& start);
  void Deliver(const v1::Decision& decision);
  void Deliver(const v1::TraceSteps& trace);
  void MoveShards(const v1::ShardAddresses& shards);
  void Cancel(const std::string& reason);
  // The process has ended, without any notification.
  void Die(bool host_lost);

  const v1::RankSlot& place() const { return assignment_.place(); }
  bool running() const { return running_; }

 private:
  using Next = std::function<void()>;
  using NextInputs = std::function<void(const std::vector<std::string>&)>;

  bool lead() const { return place().rank() == 0; }
  const v1::RunSpec& spec() const { return assignment_.spec(); }
  void Pause(absl::Duration at_most, Next next);
  void Collective(const std::string& kind, std::string input, NextInputs next);
  void End(const absl::Status& status);

  void Connect();
  void LoadVersion();
  void Prepare();
  void BeginTraining();
  void Evaluate(uint64_t begin, uint64_t end, Next next);
  void TrainTo(uint32_t step, Next next);
  // Rank 0 reports random step times at random steps.
  void MaybeMeasure();
  // Adds the last step to the trace in progress, as one event.
  void TraceStep();
  void TrainSolo();
  void Contribute();
  void SendContributed();
  void AwaitDecision();
  void Adopt(const v1::Decision& decision);
  void AdoptPulled(const v1::Decision& decision, uint64_t digest);
  void Continue(const v1::Decision& decision);
  v1::PullRequest RequestFor(uint32_t version) const;
  // The digest of the model that the ranks hold together.
  void GroupDigest(const std::string& kind, std::function<void(uint64_t)> next);

  World& world_;
  Invariants& invariants_;
  const v1::Assignment assignment_;
  const Callbacks callbacks_;
  const absl::Duration step_time_;
  const std::vector<int64_t> begins_;
  const std::vector<Interval> owned_;
  std::shared_ptr<GroupFabric> fabric_;
  SimulatedExchange exchange_;
  Lifetime life_;
  bool running_ = false;
  bool ended_ = false;

  std::optional<v1::Start> start_;
  bool awaiting_start_ = false;
  std::deque<v1::Decision> decisions_;
  bool awaiting_decision_ = false;
  std::optional<v1::TraceSteps> trace_request_;
  // The trace in progress, if any, and the number of steps that it still needs.
  std::optional<v1::Traced> tracing_;
  uint32_t trace_steps_left_ = 0;

  // The version adopted last, and the model after training.
  Words base_;
  Words trained_;
  uint32_t version_ = 0;
  uint32_t step_ = 0;
  uint32_t period_steps_ = 0;
  uint32_t solo_steps_ = 0;
  uint32_t total_steps_ = 0;
};

}  // namespace cadre::simulation
