#include "tests/simulation/simulated_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "member/group_member.h"
#include "server/client/refusal.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

uint64_t ToNumber(const std::string& text) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

}  // namespace

SimulatedTrainer::SimulatedTrainer(World& world, Network& network, Fabrics& fabrics,
                                   Directory& directory, Invariants& invariants,
                                   const std::string& host, absl::Duration step_time,
                                   TrainerProgress& progress, v1::Assignment assignment,
                                   Callbacks callbacks)
    : world_(world),
      invariants_(invariants),
      assignment_(std::move(assignment)),
      host_(world.hosts[host]),
      progress_(progress),
      callbacks_(std::move(callbacks)),
      step_time_(step_time),
      begins_(TensorBegins(assignment_.spec())),
      owned_(OwnedSpans(spec(), assignment_.place().rank(), assignment_.peers_size())),
      fabric_(fabrics.Of(assignment_.place(), assignment_.peers_size())),
      base_(begins_.back()),
      trained_(begins_.back()),
      exchange_(world, network, directory, invariants, host, progress, spec(), owned_, trained_,
                *ParseSecretKey(assignment_.key())),
      protocol_(assignment_),
      life_(&host_.training) {
  fabric_->SetHost(place().rank(), host_);
  for (const v1::ShardAddress& shard : assignment_.shards()) {
    exchange_.SetAddress(shard.shard(), shard.address());
  }
}

// ---- Calls of the worker

void SimulatedTrainer::Deliver(const v1::Start& start) {
  start_ = start;
  if (world_.plant == Plant::kIgnoreCatchUp) start_->clear_catch_up();
  if (std::exchange(awaiting_start_, false))
    Pause(absl::Milliseconds(2), [this] { AgreeOnStart(); });
}

void SimulatedTrainer::Deliver(const v1::Decision& decision) {
  decisions_.push_back(decision);
  if (std::exchange(awaiting_decision_, false)) {
    Pause(absl::Milliseconds(2), [this] { Do(RankProtocol::AwaitDecision{}); });
  }
}

void SimulatedTrainer::Deliver(const v1::Nudge& nudge) {
  nudged_round_ = std::max(nudged_round_, nudge.round());
}

void SimulatedTrainer::Deliver(const v1::TraceSteps& trace) {
  if (tracing_.has_value() && tracing_->request() == trace.request()) return;
  trace_request_ = trace;
}

void SimulatedTrainer::Deliver(const v1::Restage& restage) {
  const auto key = std::make_tuple(restage.shard(), restage.round(), restage.seed());
  if (!restages_.insert(key).second) return;  // repeated
  v1::ContributionHeader seed = HeaderFor(restage.round(), /*samples=*/1);
  seed.set_seed(true);
  exchange_.StageAgain(restage, std::move(seed), [this, restage, key](const absl::Status& status) {
    restages_.erase(key);
    world_.Count(status.ok() ? "values_staged_again" : "values_not_staged_again");
    v1::Restaged restaged;
    *restaged.mutable_place() = place();
    restaged.set_shard(restage.shard());
    restaged.set_round(restage.round());
    restaged.set_seed(restage.seed());
    restaged.set_error(std::string(status.message()));
    callbacks_.send(restaged);
  });
}

void SimulatedTrainer::MoveShards(const v1::ShardAddresses& shards) {
  for (const v1::ShardAddress& shard : shards.shards()) {
    exchange_.SetAddress(shard.shard(), shard.address());
  }
}

void SimulatedTrainer::Cancel(const std::string& reason) {
  End(absl::CancelledError(reason), v1::FAILURE_CAUSE_UNSPECIFIED);
}

void SimulatedTrainer::Die(bool host_lost) {
  ended_ = true;
  life_.End();
  exchange_.Cancel();
  fabric_->Leave(place().rank(), host_lost);
}

void SimulatedTrainer::End(const absl::Status& status, v1::FailureCause cause,
                           const std::vector<uint32_t>& suspects) {
  if (ended_) return;
  Die(/*host_lost=*/false);
  v1::GroupFailed failed;
  failed.set_cause(cause);
  for (const uint32_t rank : suspects) failed.add_suspects(rank);
  callbacks_.ended(status, failed);
}

bool SimulatedTrainer::FailsBy(v1::FailureCause cause) {
  if (host_.bad <= world_.timeline.now() || host_.cause != cause) return false;
  End(absl::FailedPreconditionError("the host is bad"), cause);
  return true;
}

void SimulatedTrainer::Pause(absl::Duration at_most, Next next) {
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), at_most), life_, std::move(next));
}

void SimulatedTrainer::Collective(const std::string& kind, std::string input, NextInputs next) {
  fabric_->Enter(place().rank(), kind, std::move(input), life_,
                 [this, next = std::move(next)](std::optional<uint32_t> left,
                                                const std::vector<std::string>& inputs) {
                   if (left.has_value()) {
                     const std::vector<uint32_t> suspects(left != place().rank(), *left);
                     return End(absl::UnavailableError("a peer has left"), v1::FAILURE_CAUSE_PEER,
                                suspects);
                   }
                   next(inputs);
                 });
}

void SimulatedTrainer::GroupDigest(const std::string& kind, std::function<void(uint64_t)> next) {
  Collective(kind, absl::StrCat(DigestOf(base_, owned_)),
             [next = std::move(next)](const std::vector<std::string>& inputs) {
               uint64_t digest = 0;
               for (const std::string& input : inputs) digest += ToNumber(input);
               next(digest);
             });
}

// ---- Before training

void SimulatedTrainer::Run() {
  running_ = true;
  progress_.Enter(v1::ACTIVITY_PREPARING);
  const bool slow = host_.slow_preparation > world_.timeline.now();
  if (slow) {
    const absl::Time until = world_.timeline.now() + host_.preparation;
    host_.busy = std::max(host_.busy, until);
  }
  world_.timeline.After(slow ? host_.preparation : absl::ZeroDuration(), life_,
                        [this] { Pause(absl::Milliseconds(300), [this] { OpenData(); }); });
}

void SimulatedTrainer::OpenData() {
  if (FailsBy(v1::FAILURE_CAUSE_DATA)) return;
  progress_.Advance();
  Connect();
}

void SimulatedTrainer::Connect() {
  auto connected = std::make_shared<bool>(false);
  world_.timeline.After(kConnectTimeout, life_, [this, connected] {
    if (*connected) return;
    End(absl::DeadlineExceededError("the group was not connected in time"), v1::FAILURE_CAUSE_PEER,
        fabric_->Missing());
  });
  Collective("connect", "", [this, connected](const std::vector<std::string>&) {
    *connected = true;
    progress_.Advance();
    if (!FailsBy(v1::FAILURE_CAUSE_MEMORY)) Prepare();
  });
}

v1::PullRequest SimulatedTrainer::RequestFor(uint32_t version) const {
  v1::PullRequest request;
  request.set_run(place().run());
  request.set_lineage(assignment_.lineage());
  request.set_version(version);
  request.set_group(place().group());
  request.set_generation(place().generation());
  return request;
}

v1::ContributionHeader SimulatedTrainer::HeaderFor(uint32_t round, uint64_t samples) const {
  v1::ContributionHeader header;
  header.set_run(place().run());
  header.set_lineage(assignment_.lineage());
  header.set_group(place().group());
  header.set_generation(place().generation());
  header.set_rank(place().rank());
  header.set_round(round);
  header.set_base_version(round - 1);
  header.set_samples(samples);
  return header;
}

void SimulatedTrainer::Prepare() {
  v1::Prepared prepared;
  *prepared.mutable_place() = place();
  prepared.set_train_samples(spec().data().synthetic().train_samples());
  prepared.set_test_samples(spec().data().synthetic().test_samples());
  if (place().rank() == 0) {
    // Rank 0 reports a measured link.
    *prepared.mutable_plan() = assignment_.plan();
    prepared.mutable_plan()->mutable_link()->set_alpha(1e-5);
    prepared.mutable_plan()->mutable_link()->set_beta(1e-9);
  }
  progress_.Enter(v1::ACTIVITY_WAITING);
  awaiting_start_ = !start_.has_value();
  if (awaiting_start_ && world_.plant == Plant::kTrainUnstarted) {
    start_.emplace();
    *start_->mutable_place() = place();
    start_->set_next_step(start_->step() + 1);
    awaiting_start_ = false;
    return BeginTraining();
  }
  callbacks_.send(prepared);
}

// ---- Training

void SimulatedTrainer::AgreeOnStart() {
  Collective("start", lead() ? start_->SerializeAsString() : "",
             [this](const std::vector<std::string>& inputs) {
               start_->ParseFromString(inputs[0]);
               BeginTraining();
             });
}

void SimulatedTrainer::BeginTraining() {
  base_ = InitialValues(spec());
  trained_ = base_;
  step_ = start_->step();
  invariants_.OnTraining(place(), /*begins=*/true);
  Handle(RankProtocol::Started{*start_, spec().data().synthetic().train_samples()});
}

// Sending may end the session.
void SimulatedTrainer::Handle(const RankProtocol::Event& event) {
  for (const RankProtocol::Action& action : protocol_.Handle(event)) {
    if (ended_) return;
    std::visit([this](const auto& one) { Do(one); }, action);
  }
}

void SimulatedTrainer::Do(const RankProtocol::Send& send) { callbacks_.send(send.report); }

void SimulatedTrainer::Do(const RankProtocol::Fail& fail) {
  world_.Violate(Describe(place()), ": ", fail.status.message());
}

void SimulatedTrainer::Do(const RankProtocol::Leave& /*leave*/) {
  world_.Violate(Describe(place()), ": leaves without being asked");
}

void SimulatedTrainer::Do(const RankProtocol::Evaluate& evaluate) {
  progress_.Enter(v1::ACTIVITY_EVALUATING);
  Pause(absl::Milliseconds(500), [this, evaluate] {
    GroupDigest("digest of the evaluation", [this, evaluate](uint64_t digest) {
      const int64_t samples = evaluate.end - evaluate.begin;
      Handle(RankProtocol::Evaluated{.correct = samples / 2, .labels = samples, .digest = digest});
    });
  });
}

void SimulatedTrainer::Do(const RankProtocol::Train& train) {
  if (protocol_.solo_steps() > 0) world_.Count("solo_steps", lead() ? train.until - step_ : 0);
  TrainStep(train.until);
}

void SimulatedTrainer::TrainStep(uint32_t until) {
  if (step_ >= until) return Handle(RankProtocol::Trained{});
  progress_.Enter(v1::ACTIVITY_TRAINING);
  ++steps_begun_;
  const absl::Duration time = step_time_ * world_.dice.Between(50, 150) / 100;
  world_.timeline.After(time, life_, [this, until] {
    if (std::exchange(host_.diverges, false)) {
      return End(absl::OutOfRangeError("the loss is NaN"), v1::FAILURE_CAUSE_DIVERGED);
    }
    progress_.Advance();
    Collective("step", "", [this, until](const std::vector<std::string>&) {
      ++step_;
      progress_.Advance();
      TraceStep();
      if (lead() && world_.dice.Chance(0.2)) {
        v1::Progress progress;
        *progress.mutable_place() = place();
        progress.set_step(step_);
        progress.set_solo_steps(protocol_.solo_steps());
        callbacks_.send(progress);
      }
      MaybeMeasure();
      TrainStep(until);
    });
  });
}

void SimulatedTrainer::MaybeMeasure() {
  if (!lead() || !world_.dice.Chance(0.05)) return;
  const double seconds = world_.dice.Between(50, 2000) * 1e-3;
  v1::Measured measured;
  *measured.mutable_place() = place();
  measured.mutable_times()->set_step(seconds);
  measured.mutable_times()->set_compute(seconds);
  v1::LayerTime& layer = *measured.mutable_layers()->add_time();
  layer.set_layer("fc1");
  layer.set_samples(1);
  layer.set_forward(seconds);
  callbacks_.send(measured);
}

void SimulatedTrainer::TraceStep() {
  if (tracing_.has_value()) {
    tracing_->add_events()->set_step(step_);
    if (--trace_steps_left_ == 0) {
      callbacks_.send(*tracing_);
      tracing_.reset();
    }
  }
  if (tracing_.has_value() || !trace_request_.has_value()) return;
  tracing_.emplace();
  *tracing_->mutable_place() = trace_request_->place();
  tracing_->set_request(trace_request_->request());
  trace_steps_left_ = trace_request_->steps();
  trace_request_.reset();
}

// ---- The boundary

void SimulatedTrainer::Do(const RankProtocol::AskPresence& /*ask*/) {
  Collective("presence", lead() && !callbacks_.connected() ? "away" : "",
             [this](const std::vector<std::string>& inputs) {
               Handle(RankProtocol::Presence{.away = !inputs[0].empty()});
             });
}

void SimulatedTrainer::Do(const RankProtocol::AskNudge& ask) {
  const bool nudged = lead() && nudged_round_ >= ask.round;
  if (nudged) world_.Count("contributions_on_demand");
  Collective("nudge", nudged ? "nudged" : "", [this](const std::vector<std::string>& inputs) {
    Handle(RankProtocol::Nudged{.nudged = !inputs[0].empty()});
  });
}

void SimulatedTrainer::Do(const RankProtocol::Stage& stage) {
  staged_round_ = stage.round;
  for (const Interval& span : owned_) {
    for (int64_t p = span.begin; p < span.end; ++p) {
      trained_[p] = TrainedValue(base_[p], place().group(), place().generation(), stage.samples);
    }
  }
  if (world_.plant == Plant::kContributeUntrained) trained_ = base_;
  if (!exchange_.has_shards()) return AgreeThatAllStaged();
  progress_.Enter(v1::ACTIVITY_EXCHANGING);
  const v1::ContributionHeader header = HeaderFor(stage.round, stage.samples);
  const auto staged = [this](const absl::Status& status) {
    const bool late = RefusalOf(status) == v1::REFUSAL_CLOSED_ROUND;
    if (!status.ok() && !late) return End(status, v1::FAILURE_CAUSE_AGGREGATOR);
    if (late) world_.Count("contributions_late");
    progress_.Advance();
    exchanging_ = false;
    if (auto waiting = std::exchange(waiting_for_exchange_, nullptr)) waiting();
  };
  exchanging_ = true;
  if (!stage.background) waiting_for_exchange_ = [this] { AgreeThatAllStaged(); };
  exchange_.Stage(header, staged);
  if (stage.background) Handle(RankProtocol::Unfinished{});
}

void SimulatedTrainer::Do(const RankProtocol::AwaitStaged& await) {
  if (await.wait) return AfterExchange([this] { AgreeThatAllStaged(); });
  Collective("have all staged", exchanging_ ? "no" : "",
             [this](const std::vector<std::string>& inputs) {
               const bool all = std::all_of(inputs.begin(), inputs.end(),
                                            [](const std::string& input) { return input.empty(); });
               if (all) return AgreeThatAllStaged();
               world_.Count("steps_during_exchanges");
               Handle(RankProtocol::Unfinished{});
             });
}

void SimulatedTrainer::AfterExchange(Next next) {
  if (!exchanging_) return next();
  progress_.Enter(v1::ACTIVITY_EXCHANGING);
  waiting_for_exchange_ = std::move(next);
}

void SimulatedTrainer::AgreeThatAllStaged() {
  Collective("staged", "", [this](const std::vector<std::string>&) {
    Handle(RankProtocol::Staged{.payload_bytes =
                                    exchange_.has_shards() ? uint64_t(begins_.back()) * 4 : 0});
  });
}

void SimulatedTrainer::Do(const RankProtocol::AwaitDecision& await) {
  if (await.wait) progress_.Enter(v1::ACTIVITY_WAITING);
  if (lead() && await.wait && decisions_.empty()) {
    awaiting_decision_ = true;
    return;
  }
  std::string input;
  if (lead() && !decisions_.empty()) {
    input = decisions_.front().SerializeAsString();
    decisions_.pop_front();
  }
  Collective("decision", std::move(input), [this](const std::vector<std::string>& inputs) {
    if (inputs[0].empty()) {
      world_.Count("steps_during_exchanges");
      return Handle(RankProtocol::Unfinished{});
    }
    RankProtocol::Decided decided;
    if (!decided.decision.ParseFromString(inputs[0])) {
      world_.Violate("a decision cannot be parsed");
      return;
    }
    if (decided.decision.adopt() && !decided.decision.included()) world_.Count("groups_left_out");
    Handle(decided);
  });
}

void SimulatedTrainer::Do(const RankProtocol::Initialize& /*initialize*/) {
  exchange_.AdoptInitial();
  GroupDigest("digest of version 0", [this](uint64_t digest) {
    invariants_.OnHeld(place(), /*version=*/0, base_, owned_);
    Handle(RankProtocol::Pulled{.digest = digest});
  });
}

void SimulatedTrainer::Do(const RankProtocol::Pull& pull) {
  const auto pulled = [this, pull](uint64_t digest) {
    // Before the protocol continues, which may end the session.
    if (digest == pull.digest) {
      step_ = pull.step;
      invariants_.OnHeld(place(), pull.version, base_, owned_);
    }
    Handle(RankProtocol::Pulled{.digest = digest, .payload_bytes = uint64_t(begins_.back()) * 4});
  };
  if (world_.plant == Plant::kIgnoreVersion) {
    return pull.background ? Handle(RankProtocol::Unfinished{}) : pulled(pull.digest);
  }
  if (pulling_ != pull.version) {
    pulling_ = pull.version;
    exchanging_ = true;
    exchange_.Pull(RequestFor(pull.version), [this](const absl::Status& status) {
      if (!status.ok()) return End(status, v1::FAILURE_CAUSE_AGGREGATOR);
      progress_.Advance();
      exchanging_ = false;
      if (auto waiting = std::exchange(waiting_for_exchange_, nullptr)) waiting();
    });
  }
  if (pull.background) return Handle(RankProtocol::Unfinished{});
  AfterExchange([this, pulled, pull] {
    pulling_.reset();
    Collective("pulled", "", [this, pulled, pull](const std::vector<std::string>&) {
      exchange_.Adopt(pull.included);
      base_ = trained_;
      GroupDigest("digest of the version", pulled);
    });
  });
}

// The values that training would have changed depend only on the version and the samples.
void SimulatedTrainer::Do(const RankProtocol::Merge& merge) {
  step_ = merge.step;
  world_.Count("versions_merged");
}

void SimulatedTrainer::Do(const RankProtocol::Begin& /*begin*/) { Handle(RankProtocol::Kept{}); }

void SimulatedTrainer::Do(const RankProtocol::Keep& /*keep*/) {
  if (!exchange_.has_shards()) base_ = trained_;  // The group keeps its own model.
  Handle(RankProtocol::Kept{});
}

}  // namespace cadre::simulation
