#include "tests/simulation/simulated_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "server/client/refusal.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

// Time limit for connecting a group, as in worker/worker.cc.
constexpr absl::Duration kConnectTimeout = absl::Seconds(60);

uint64_t ToNumber(const std::string& text) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

}  // namespace

SimulatedTrainer::SimulatedTrainer(World& world, Network& network, Fabrics& fabrics,
                                   Directory& directory, Invariants& invariants,
                                   const std::string& host, absl::Duration step_time,
                                   v1::Assignment assignment, Callbacks callbacks)
    : world_(world),
      invariants_(invariants),
      assignment_(std::move(assignment)),
      callbacks_(std::move(callbacks)),
      step_time_(step_time),
      begins_(TensorBegins(assignment_.spec())),
      owned_(OwnedSpans(begins_, assignment_.place().rank(), assignment_.peers_size())),
      fabric_(fabrics.Of(assignment_.place(), assignment_.peers_size())),
      exchange_(world, network, directory, invariants, host),
      base_(begins_.back()),
      version_(assignment_.version()),
      step_(assignment_.step()) {
  for (const v1::ShardAddress& shard : assignment_.shards()) {
    exchange_.SetAddress(shard.shard(), shard.address());
  }
}

// ---- Calls of the worker

void SimulatedTrainer::Deliver(const v1::Start& start) {
  start_ = start;
  if (std::exchange(awaiting_start_, false))
    Pause(absl::Milliseconds(2), [this] { BeginTraining(); });
}

void SimulatedTrainer::Deliver(const v1::Decision& decision) {
  decisions_.push_back(decision);
  if (std::exchange(awaiting_decision_, false)) {
    Pause(absl::Milliseconds(2), [this] { AwaitDecision(); });
  }
}

void SimulatedTrainer::Deliver(const v1::TraceSteps& trace) {
  if (tracing_.has_value() && tracing_->request() == trace.request()) return;
  trace_request_ = trace;
}

void SimulatedTrainer::MoveShards(const v1::ShardAddresses& shards) {
  for (const v1::ShardAddress& shard : shards.shards()) {
    exchange_.SetAddress(shard.shard(), shard.address());
  }
}

void SimulatedTrainer::Cancel(const std::string& reason) { End(absl::CancelledError(reason)); }

void SimulatedTrainer::Die(bool host_lost) {
  ended_ = true;
  life_.End();
  exchange_.Cancel();
  fabric_->Leave(place().rank(), host_lost);
}

void SimulatedTrainer::End(const absl::Status& status) {
  if (ended_) return;
  Die(/*host_lost=*/false);
  callbacks_.ended(status);
}

void SimulatedTrainer::Pause(absl::Duration at_most, Next next) {
  world_.timeline.After(world_.dice.Between(absl::ZeroDuration(), at_most), life_, std::move(next));
}

void SimulatedTrainer::Collective(const std::string& kind, std::string input, NextInputs next) {
  fabric_->Enter(place().rank(), kind, std::move(input), life_,
                 [this, next = std::move(next)](bool ok, const std::vector<std::string>& inputs) {
                   if (!ok) return End(absl::UnavailableError("a peer has left"));
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
  Pause(absl::Milliseconds(300), [this] { Connect(); });
}

void SimulatedTrainer::Connect() {
  auto connected = std::make_shared<bool>(false);
  world_.timeline.After(kConnectTimeout, life_, [this, connected] {
    if (!*connected) End(absl::DeadlineExceededError("the group was not connected in time"));
  });
  Collective("connect", "", [this, connected](const std::vector<std::string>&) {
    *connected = true;
    LoadVersion();
  });
}

v1::PullRequest SimulatedTrainer::RequestFor(uint32_t version) const {
  v1::PullRequest request;
  request.set_run(place().run());
  request.set_lineage(assignment_.lineage());
  request.set_version(version);
  return request;
}

void SimulatedTrainer::LoadVersion() {
  if (!exchange_.has_shards()) {
    base_ = InitialWords(spec(), {0, begins_.back()});
    return Prepare();
  }
  exchange_.Pull(RequestFor(version_), begins_, owned_, &base_, [this](const absl::Status& status) {
    if (!status.ok()) return End(status);
    GroupDigest("digest of the assigned version", [this](uint64_t digest) {
      if (digest != assignment_.digest()) {
        world_.Violate(Describe(place()), " pulled version ", version_, " with digest ", digest,
                       ", but its assignment has digest ", assignment_.digest());
        return;
      }
      invariants_.OnHeld(place(), version_, base_, owned_);
      Prepare();
    });
  });
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
  awaiting_start_ = !start_.has_value();
  callbacks_.prepared(prepared);
}

// ---- Training

void SimulatedTrainer::BeginTraining() {
  trained_ = base_;
  total_steps_ = start_->total_steps();
  invariants_.OnTraining(place(), /*begins=*/true);
  Evaluate(start_->evaluate_begin(), start_->evaluate_end(), [this] {
    if (start_->next_step() == 0) return AwaitDecision();
    TrainTo(start_->next_step(), [this] {
      solo_steps_ = 0;
      TrainSolo();
    });
  });
}

void SimulatedTrainer::Evaluate(uint64_t begin, uint64_t end, Next next) {
  if (begin >= end) return next();
  Pause(absl::Milliseconds(500), [this, begin, end, next = std::move(next)] {
    GroupDigest("digest of the evaluation", [this, begin, end, next](uint64_t digest) {
      if (lead()) {
        v1::Evaluated evaluated;
        *evaluated.mutable_place() = place();
        evaluated.set_version(version_);
        evaluated.set_begin(begin);
        evaluated.set_end(end);
        evaluated.set_correct((end - begin) / 2);
        evaluated.set_labels(end - begin);
        evaluated.set_digest(digest);
        callbacks_.evaluated(evaluated);
      }
      next();
    });
  });
}

void SimulatedTrainer::TrainTo(uint32_t step, Next next) {
  if (step_ >= step) return next();
  const absl::Duration time = step_time_ * world_.dice.Between(50, 150) / 100;
  world_.timeline.After(time, life_, [this, step, next = std::move(next)] {
    Collective("step", "", [this, step, next](const std::vector<std::string>&) {
      ++step_;
      ++period_steps_;
      TraceStep();
      if (lead() && world_.dice.Chance(0.2)) {
        v1::Progress progress;
        *progress.mutable_place() = place();
        progress.set_step(step_);
        progress.set_solo_steps(solo_steps_);
        callbacks_.progress(progress);
      }
      MaybeMeasure();
      TrainTo(step, next);
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
  callbacks_.measured(measured);
}

void SimulatedTrainer::TraceStep() {
  if (tracing_.has_value()) {
    tracing_->add_events()->set_step(step_);
    if (--trace_steps_left_ == 0) {
      callbacks_.traced(*tracing_);
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

void SimulatedTrainer::TrainSolo() {
  const uint32_t max_steps = spec().averaging().max_solo_steps();
  if (max_steps == 0) return Contribute();
  const bool further = solo_steps_ < max_steps && (total_steps_ == 0 || step_ < total_steps_);
  const bool disconnected = lead() && !callbacks_.connected() && further;
  Collective("solo", disconnected ? "1" : "0",
             [this, max_steps](const std::vector<std::string>& inputs) {
               if (inputs[0] == "0") return Contribute();
               const uint32_t period = std::max(1U, spec().averaging().every_steps());
               uint32_t steps = std::min(period, max_steps - solo_steps_);
               if (total_steps_ > 0) steps = std::min(steps, total_steps_ - step_);
               solo_steps_ += steps;
               world_.Count("solo_steps", lead() ? steps : 0);
               TrainTo(step_ + steps, [this] { TrainSolo(); });
             });
}

// ---- The boundary

void SimulatedTrainer::Contribute() {
  const uint64_t samples = uint64_t{period_steps_} * spec().batch_per_group();
  for (const Interval& span : owned_) {
    for (int64_t p = span.begin; p < span.end; ++p) {
      trained_[p] = TrainedWord(base_[p], place().group(), place().generation(), samples);
    }
  }
  if (!exchange_.has_shards()) return SendContributed();
  v1::ContributionHeader header;
  header.set_run(place().run());
  header.set_lineage(assignment_.lineage());
  header.set_group(place().group());
  header.set_generation(place().generation());
  header.set_rank(place().rank());
  header.set_round(version_ + 1);
  header.set_base_version(version_);
  header.set_samples(samples);
  exchange_.Stage(header, begins_, owned_, trained_, [this](const absl::Status& status) {
    const bool late = RefusalOf(status) == v1::REFUSAL_CLOSED_ROUND;
    if (!status.ok() && !late) return End(status);
    if (late) world_.Count("contributions_late");
    SendContributed();
  });
}

void SimulatedTrainer::SendContributed() {
  Collective("contributed", "", [this](const std::vector<std::string>&) {
    if (lead()) {
      v1::Contributed contributed;
      *contributed.mutable_place() = place();
      contributed.set_round(version_ + 1);
      contributed.set_base_version(version_);
      contributed.set_step(step_);
      contributed.set_samples(uint64_t{period_steps_} * spec().batch_per_group());
      contributed.set_payload_bytes(exchange_.has_shards() ? begins_.back() * 4 : 0);
      callbacks_.contributed(contributed);
    }
    AwaitDecision();
  });
}

void SimulatedTrainer::AwaitDecision() {
  if (lead() && decisions_.empty()) {
    awaiting_decision_ = true;
    return;
  }
  std::string input;
  if (lead()) {
    input = decisions_.front().SerializeAsString();
    decisions_.pop_front();
  }
  Collective("decision", std::move(input), [this](const std::vector<std::string>& inputs) {
    v1::Decision decision;
    if (!decision.ParseFromString(inputs[0])) {
      world_.Violate("a decision cannot be parsed");
      return;
    }
    Adopt(decision);
  });
}

void SimulatedTrainer::Adopt(const v1::Decision& decision) {
  const bool again = decision.adopt() && decision.version() == version_ && period_steps_ == 0;
  if (!decision.adopt() || again) return Continue(decision);
  if (!decision.included()) world_.Count("groups_left_out");
  if (world_.plant == Plant::kIgnoreVersion) return AdoptPulled(decision, decision.digest());
  exchange_.Pull(RequestFor(decision.version()), begins_, owned_, &base_,
                 [this, decision](const absl::Status& status) {
                   if (!status.ok()) return End(status);
                   GroupDigest("digest of the version", [this, decision](uint64_t digest) {
                     AdoptPulled(decision, digest);
                   });
                 });
}

void SimulatedTrainer::AdoptPulled(const v1::Decision& decision, uint64_t digest) {
  if (lead()) {
    v1::Adopted adopted;
    *adopted.mutable_place() = place();
    adopted.set_version(decision.version());
    adopted.set_digest(digest);
    adopted.set_payload_bytes(begins_.back() * 4);
    callbacks_.adopted(adopted);
  }
  if (ended_) return;  // The callback may have ended the session.
  if (digest != decision.digest()) {
    world_.Violate(Describe(place()), " pulled version ", decision.version(), " with digest ",
                   digest, ", but the decision has digest ", decision.digest());
    return;
  }
  version_ = decision.version();
  step_ = decision.step();
  invariants_.OnHeld(place(), version_, base_, owned_);
  Continue(decision);
}

void SimulatedTrainer::Continue(const v1::Decision& decision) {
  if (!decision.adopt()) base_ = trained_;  // Without aggregators, the group keeps its model.
  period_steps_ = 0;
  Evaluate(decision.evaluate_begin(), decision.evaluate_end(), [this, decision] {
    if (decision.next_step() == 0) return AwaitDecision();
    TrainTo(decision.next_step(), [this] {
      solo_steps_ = 0;
      TrainSolo();
    });
  });
}

}  // namespace cadre::simulation
