// A thin layer: it translates between C and CallerTrainer, GroupMember and CoordinatorClient.
#include "group/cadre_group.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/rpc/address_list.h"
#include "base/rpc/credentials.h"
#include "base/status.h"
#include "coordinator/client/coordinator_client.h"
#include "glog/logging.h"
#include "group/caller_trainer.h"
#include "group/caller_values.h"
#include "group/handoff.h"
#include "member/default_name.h"
#include "model/data_position.h"
#include "server/client/version_reader.h"

namespace {

// Warnings and errors go to standard error.
void StartLogging() {
  static std::once_flag once;
  std::call_once(once, [] {
    FLAGS_logtostderr = true;
    FLAGS_minloglevel = google::GLOG_WARNING;
    if (!google::IsGoogleLoggingInitialized()) google::InitGoogleLogging("cadre");
  });
}

uint64_t ElementsOf(const cadre::CallerParameter& parameter) {
  uint64_t elements = 1;
  for (const uint64_t extent : parameter.shape) elements *= extent;
  return elements;
}

// A program that leaves ends this long before its time is over.
constexpr absl::Duration kTimeToEnd = absl::Milliseconds(500);

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

struct cadre_group {
  explicit cadre_group(uint32_t ranks) : handoff(/*finishes=*/ranks > 1) {}

  cadre::GroupMember::Options options;
  cadre::v1::Reservation reservation;
  uint64_t test_samples = 0;
  std::vector<cadre::CallerParameter> parameters;
  cadre::Handoff handoff;
  // Owned by `member`.
  cadre::CallerTrainer* trainer = nullptr;
  std::unique_ptr<cadre::GroupMember> member;
  absl::Status status;
  // The state and the run of the version that cadre_group_load has read.
  cadre_group_state loaded = {};
  std::string loaded_run;
  // Whether the program was asked to leave, and whether it has ended its loop.
  std::atomic<bool> leaving = false;
  bool finished = false;
  // Returned to the caller.
  mutable std::string text;

  // Keeps the first error.
  int32_t Fail(absl::Status error) {
    if (status.ok()) status = std::move(error);
    return CADRE_ERROR;
  }
  // For the handlers of the functions: a lack of memory, for example.
  int32_t FailWith(const std::exception& error) { return Fail(absl::InternalError(error.what())); }
  // How long a program that leaves may still wait for a version.
  absl::Duration TimeToLeave() const {
    const auto left = member == nullptr ? std::nullopt : member->leaves_within();
    if (!left.has_value()) return absl::InfiniteDuration();
    return std::max(*left - kTimeToEnd, absl::ZeroDuration());
  }
  absl::Status Load(const std::string& run) {
    const cadre::CoordinatorClient coordinator({.coordinator = options.coordinator,
                                                .credentials = options.credentials,
                                                .dial_timeout = options.dial_timeout});
    const auto locate = [&] { return coordinator.Locate(run); };
    CADRE_ASSIGN_OR_RETURN(const cadre::ReadVersion version,
                           cadre::ReadNewestVersion(run, locate, options.credentials));
    const cadre::v1::LocateReply& located = version.located;
    auto values = cadre::CallerValues::Make(parameters, located.spec().model());
    if (!values.ok()) return cadre::Annotate(values.status(), absl::StrCat("run ", version.run));
    values->SetAll(version.values);
    loaded = {.version = located.version(),
              .digest = located.digest(),
              .step = located.step(),
              .total_steps = located.spec().stop().steps()};
    loaded_run = version.run;
    return absl::OkStatus();
  }
  // The first error of the group's own threads.
  absl::Status Failure() const {
    absl::Status error = trainer != nullptr ? trainer->error() : absl::OkStatus();
    // The ranks of a program that leave need not do so at the same moment.
    const bool leaves = leaving || (member != nullptr && member->drain_requested());
    if ((leaves || contributes_end()) && absl::IsCancelled(error)) error = absl::OkStatus();
    if (error.ok() && member != nullptr) error = member->end();
    return error;
  }
  // Whether the steps before the end of the program's loop are contributed.
  bool contributes_end() const {
    return finished && trainer != nullptr && trainer->agreed_on_end();
  }
  // Why they are not; OK if they are, if the run has ended, or if the program was asked to leave.
  absl::Status LostEnd() const {
    if (!finished || leaving || contributes_end() || member == nullptr || trainer->run_ended() ||
        member->drain_requested()) {
      return absl::OkStatus();
    }
    const absl::Status released = member->released();
    if (released.ok()) return absl::OkStatus();
    return absl::CancelledError(
        absl::StrCat("the last steps of the loop are not contributed: ", released.message()));
  }
};

extern "C" {

int32_t cadre_group_abi(void) { return CADRE_GROUP_ABI; }

cadre_group* cadre_group_open(const cadre_group_options* options) {
  StartLogging();
  auto* const group = new cadre_group(options->ranks);
  cadre::GroupMember::Options& member = group->options;
  member.coordinator = OrEmpty(options->coordinator);
  member.version = CADRE_VERSION;
  if (options->listen != nullptr) member.listen = options->listen;
  member.advertise = OrEmpty(options->advertise);
  if (options->dial_seconds > 0) member.dial_timeout = absl::Seconds(options->dial_seconds);
  member.drains_within = options->notice_seconds > 0 ? absl::Seconds(options->notice_seconds)
                                                     : absl::InfiniteDuration();
  auto credentials = cadre::Credentials::FromFlags(OrEmpty(options->tls), options->insecure != 0,
                                                   cadre::Role::kWorker);
  // A group without addresses can register its parameters, but not join.
  const absl::Status listed = member.coordinator.empty()
                                  ? absl::OkStatus()
                                  : cadre::CheckAddresses("coordinator", member.coordinator);
  if (!listed.ok()) {
    group->Fail(listed);
  } else if (credentials.ok()) {
    member.credentials = *std::move(credentials);
    member.name = options->name != nullptr
                      ? options->name
                      : cadre::DefaultWorkerName(member.credentials, absl::StrCat(getpid()));
  } else {
    group->Fail(credentials.status());
  }
  group->reservation.set_run(OrEmpty(options->run));
  group->reservation.set_program(OrEmpty(options->program));
  group->reservation.set_ranks(options->ranks);
  group->reservation.set_rank(options->rank);
  group->test_samples = options->test_samples;
  return group;
}

int32_t cadre_group_add_parameter(cadre_group* group, const char* name, const uint64_t* shape,
                                  int32_t dimensions, int32_t trained, float* values) try {
  if (group->member != nullptr) {
    return group->Fail(absl::FailedPreconditionError(
        absl::StrCat("parameter '", name, "' is registered after the group has joined")));
  }
  cadre::CallerParameter& parameter = group->parameters.emplace_back(
      cadre::CallerParameter{.name = name, .shape = {shape, shape + dimensions}});
  parameter.trained = trained != 0;
  if (values != nullptr) {
    parameter.parts.push_back({{0, static_cast<int64_t>(ElementsOf(parameter))}, values});
  }
  return 0;
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_add_frozen(cadre_group* group, const char* name, const uint64_t* shape,
                               int32_t dimensions, const char* digest) try {
  if (digest == nullptr || *digest == 0) {
    return group->Fail(absl::InvalidArgumentError(
        absl::StrCat("parameter '", name, "' is frozen, so it needs a digest")));
  }
  if (cadre_group_add_parameter(group, name, shape, dimensions, 0, nullptr) != 0) {
    return CADRE_ERROR;
  }
  group->parameters.back().frozen_digest = digest;
  return 0;
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_add_part(cadre_group* group, uint64_t begin, uint64_t end, float* values) try {
  if (group->parameters.empty()) {
    return group->Fail(absl::FailedPreconditionError("a part needs a parameter"));
  }
  cadre::CallerParameter& parameter = group->parameters.back();
  if (!parameter.frozen_digest.empty()) {
    return group->Fail(absl::FailedPreconditionError(
        absl::StrCat("parameter '", parameter.name, "' is frozen and has no parts")));
  }
  const uint64_t elements = ElementsOf(parameter);
  if (begin > end || end > elements) {
    return group->Fail(
        absl::InvalidArgumentError(absl::StrCat("elements ", begin, " to ", end, " of parameter '",
                                                parameter.name, "', which has ", elements)));
  }
  parameter.parts.push_back({{static_cast<int64_t>(begin), static_cast<int64_t>(end)}, values});
  return 0;
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_load(cadre_group* group, const char* run) try {
  if (!group->status.ok()) return CADRE_ERROR;
  if (group->member != nullptr) {
    return group->Fail(absl::FailedPreconditionError(
        "a version is to be loaded after the group has joined, which adopts versions itself"));
  }
  absl::Status status = group->Load(OrEmpty(run));
  return status.ok() ? 0 : group->Fail(std::move(status));
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_join(cadre_group* group) try {
  if (!group->status.ok()) return CADRE_ERROR;
  group->options.make_trainer =
      [group]() -> absl::StatusOr<std::unique_ptr<cadre::GenerationTrainer>> {
    auto trainer = std::make_unique<cadre::CallerTrainer>(group->reservation, group->parameters,
                                                          group->test_samples, group->handoff);
    group->trainer = trainer.get();
    return trainer;
  };
  group->options.ended = [group] { group->handoff.End(); };
  auto member = cadre::GroupMember::Start(group->options);
  if (!member.ok()) {
    group->trainer = nullptr;
    return group->Fail(member.status());
  }
  group->member = *std::move(member);
  return 0;
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_next(cadre_group* group, double timeout_seconds) try {
  if (!group->status.ok()) return CADRE_ERROR;
  if (group->member == nullptr) {
    return group->Fail(absl::FailedPreconditionError("the group has not joined"));
  }
  const absl::Duration left = group->TimeToLeave();
  const cadre::Handoff::Task task =
      group->handoff.Next(std::clamp(absl::Seconds(timeout_seconds), absl::ZeroDuration(), left));
  if (absl::Status failed = group->Failure(); !failed.ok()) return group->Fail(std::move(failed));
  switch (task) {
    case cadre::Handoff::Task::kWait:
      return group->TimeToLeave() > absl::ZeroDuration() ? CADRE_WAIT : CADRE_ENDED;
    case cadre::Handoff::Task::kFetch:
      return CADRE_FETCH;
    case cadre::Handoff::Task::kStore:
      return CADRE_STORE;
    case cadre::Handoff::Task::kTrain:
      group->trainer->OnTrain();
      return CADRE_TRAIN;
    case cadre::Handoff::Task::kEvaluate:
      return CADRE_EVALUATE;
    case cadre::Handoff::Task::kEnded:
      if (absl::Status lost = group->LostEnd(); !lost.ok()) return group->Fail(std::move(lost));
      return CADRE_ENDED;
  }
  return CADRE_ERROR;
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_step(cadre_group* group) {
  group->trainer->OnStep();
  return group->handoff.Step() ? 1 : 0;
}

void cadre_group_report_loss(cadre_group* group, double loss) {
  if (group->trainer != nullptr) group->trainer->report().AddLoss(loss);
}

int32_t cadre_group_report_metric(cadre_group* group, const char* name, double value) try {
  if (group->trainer == nullptr) return 0;
  const absl::Status added = group->trainer->report().AddMetric(OrEmpty(name), value);
  return added.ok() ? 0 : group->Fail(added);
} catch (const std::exception& error) {
  return group->FailWith(error);
}

int32_t cadre_group_report_tokens(cadre_group* group, uint64_t tokens) {
  if (group->trainer == nullptr) return 0;
  const absl::Status added = group->trainer->report().AddTokens(tokens);
  return added.ok() ? 0 : group->Fail(added);
}

void cadre_group_report_evaluation(cadre_group* group, uint64_t correct, uint64_t labels,
                                   double loss_sum) {
  if (group->trainer == nullptr) return;
  group->trainer->SetEvaluated({.correct = static_cast<int64_t>(correct),
                                .labels = static_cast<int64_t>(labels),
                                .loss_sum = loss_sum});
}

void cadre_group_alive(cadre_group* group) {
  if (group->trainer != nullptr) group->trainer->Advance();
}

void cadre_group_get_state(const cadre_group* group, cadre_group_state* state) {
  *state = group->loaded;
  if (group->trainer == nullptr) return;
  const cadre::ProgramState program = group->trainer->state();
  state->version = program.version;
  state->digest = program.digest;
  state->participants = program.participants;
  state->included = program.included ? 1 : 0;
  state->step = group->handoff.step();
  state->next_boundary = program.next_boundary;
  state->total_steps = program.total_steps;
  state->group = program.group;
  state->groups = program.division.groups();
  state->batch = program.batch;
  state->sample_position =
      cadre::BatchPosition(program.division, state->step, program.group, program.batch);
  state->discarded_steps = program.discarded_steps;
  state->evaluate_begin = program.evaluate.begin;
  state->evaluate_end = program.evaluate.end;
  state->connected = group->member != nullptr && group->member->connected() ? 1 : 0;
  state->drained = group->member != nullptr && group->member->drain_requested() ? 1 : 0;
}

const char* cadre_group_run(const cadre_group* group) {
  group->text = group->trainer == nullptr ? group->loaded_run : group->trainer->state().run;
  return group->text.c_str();
}

const char* cadre_group_error(const cadre_group* group) {
  group->text = std::string(group->status.message());
  if (group->text.empty() && group->member != nullptr) {
    group->text = std::string(group->member->Ready().message());
  }
  if (group->text.empty() && group->trainer != nullptr) {
    group->text = group->trainer->awaited();
  }
  return group->text.c_str();
}

void cadre_group_interrupt(cadre_group* group) { group->handoff.Interrupt(); }

void cadre_group_leave(cadre_group* group, double within_seconds) {
  group->leaving = true;
  const absl::Duration within =
      within_seconds < 0 ? absl::InfiniteDuration() : absl::Seconds(within_seconds);
  if (group->member == nullptr || !group->member->Drain(within)) return group->handoff.End();
  // The runner sees it without waiting for the next report.
  group->handoff.Wake();
}

int32_t cadre_group_finish(cadre_group* group) {
  if (!group->status.ok()) return CADRE_ERROR;
  group->finished = true;
  // In this order, because the runner goes on when the loop has ended.
  const bool started = group->member != nullptr && group->member->Drain(absl::InfiniteDuration());
  group->handoff.EndLoop();
  if (!started) group->handoff.End();
  return 0;
}

void cadre_group_close(cadre_group* group, const char* reason) {
  // A rank that has failed as its loop ended has not finished: the other ranks learn its reason.
  const bool finished = group->finished && group->status.ok();
  if (group->member != nullptr) group->member->set_stop_reason(OrEmpty(reason), finished);
  group->handoff.Cancel();
  delete group;
}

}  // extern "C"
