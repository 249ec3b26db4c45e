#include "tests/simulation/simulated_session.h"

#include <utility>
#include <variant>

#include "member/group_member.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {

SimulatedSession::SimulatedSession(const SessionContext& context, v1::Assignment assignment,
                                   Callbacks callbacks)
    : context_(context),
      world_(context.bulk.world),
      callbacks_(std::move(callbacks)),
      threads_(world_.timeline),
      runtime_(context.bulk, context.host, threads_),
      session_(std::move(assignment), *this, runtime_),
      model_(world_, context.bulk.invariants, world_.hosts[context.host], context.step_time,
             session_.assignment(), session_, context.progress, threads_),
      links_(context.fabrics.Of(place(), session_.assignment().peers_size())) {}

SimulatedSession::~SimulatedSession() {
  if (!threads_.killed()) Kill(/*host_lost=*/false);
}

void SimulatedSession::Run() {
  thread_ = threads_.Start(world_.hosts[context_.host].training, [this] {
    const TrainerOutcome outcome = Train();
    if (threads_.killed()) return;
    for (const auto& [name, value] : counters_.Snapshot()) world_.Count(name, value);
    callbacks_.ended(outcome);
  });
}

TrainerOutcome SimulatedSession::Train() {
  MemberLoopOptions options;
  options.runtime = &runtime_;
  options.states = &context_.states;
  options.residuals = &context_.residuals;
  options.progress = &context_.progress;
  options.exchange_silence = context_.bulk.world.exchange_silence;
  options.connect = [this](const v1::Assignment&) {
    return links_->Connect(place().rank(), world_.hosts[context_.host], threads_,
                           GroupMember::kConnectTimeout, [this] { return cancelled(); });
  };
  return RunMemberLoop(session_.assignment(), model_, session_, session_.cancellation(), counters_,
                       options);
}

void SimulatedSession::Deliver(const v1::CoordinatorMessage& message) {
  const v1::Decision& decision = message.decision();
  if (decision.adopt() && !decision.included()) world_.Count("groups_left_out");
  if (message.has_start() || decision.adopt()) {
    ordered_version_ = message.has_start() ? message.start().version() : decision.version();
    ++versions_ordered_;
  }
  if (message.has_start()) context_.bulk.invariants.conservation().OnStart(message.start());
  if (world_.plant != Plant::kIgnoreCatchUp) return session_.Deliver(message);
  v1::CoordinatorMessage changed = message;
  if (changed.has_start()) changed.mutable_start()->clear_catch_up();
  session_.Deliver(changed);
}

void SimulatedSession::Report(const TrainingReport& report) {
  if (threads_.killed()) return;
  if (world_.plant == Plant::kTrainUnstarted && std::holds_alternative<v1::Prepared>(report)) {
    v1::CoordinatorMessage start;
    *start.mutable_start()->mutable_place() = place();
    start.mutable_start()->set_next_step(1);
    return session_.Deliver(start);
  }
  if (const auto* contributed = std::get_if<v1::Contributed>(&report)) {
    context_.bulk.invariants.conservation().OnContributed(*contributed);
  }
  if (const auto* restaged = std::get_if<v1::Restaged>(&report)) {
    world_.Count(restaged->error().empty() ? "values_staged_again" : "values_not_staged_again");
  }
  callbacks_.report(report);
}

void SimulatedSession::Kill(bool host_lost) {
  links_->OnProcessEnded(place().rank(), host_lost);
  session_.Cancel("the process has ended");
  threads_.Kill();
}

}  // namespace cadre::simulation
