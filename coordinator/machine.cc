// Events, and the life of runs. Part of Machine.
//
// Handle has two steps. The first changes the state as the event requires: a lease is renewed, a
// contribution is added, a group is fenced. The second, Settle, does everything that has become
// possible, in one fixed order over the runs: choose shards, form groups, start them, close a
// round, assign parts of an evaluation. Settle looks only at the state and the time, never at the
// event, so there are no pending tasks: after a restart, the first event settles everything that is
// due.
//
// Determinism: the containers are ordered, the records are serialized deterministically
// (outbox.cc), and random numbers are functions of seeds in the events. The simulation and the
// tests rely on it.
//
// Cost: every event visits all live runs and their slots, and all members to find idle workers. The
// cost of an event therefore grows with the size of the cluster. Searches for plans, which happen
// when a group forms or after it has measured its steps, cost far more.
#include "coordinator/machine.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status.h"
#include "coordinator/keys.h"

namespace cadre {
namespace {

// A function object for std::visit made of one lambda per alternative.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

}  // namespace

Machine::Machine(Options options) : options_(std::move(options)), members_(options_.lease) {}

std::vector<Action> Machine::Handle(const Event& event, absl::Time now) {
  now_ = std::max(now_, now);
  if (started_ == absl::InfinitePast()) started_ = now_;
  searched_.clear();
  looked_for_better_plan_ = false;
  std::visit(Overloaded{
                 [this](const StreamOpened& e) { members_.AddPending(e.connection, now_); },
                 [this](const StreamClosed& e) { OnStreamClosed(e.connection); },
                 [this](const MessageReceived& e) { OnMessage(e); },
                 [this](const MessageRefused& e) { Refuse(e.connection, e.refusal, e.reason); },
                 [this](const SubmitRun& e) { OnSubmit(e); },
                 [this](const StopRun& e) { OnStop(e); },
                 [this](const TraceGroup& e) { OnTraceGroup(e); },
                 [this](const CancelTrace& e) { OnCancelTrace(e); },
                 [this](const Tick&) { ExpireMembers(); },
             },
             event);
  Settle();
  if (std::exchange(meta_changed_, false)) out_.Put(kMetaKey, meta_);
  return out_.Take();
}

void Machine::ExpireMembers() {
  for (const std::string& id : members_.Expired(now_)) {
    Count("leases_lost");
    Drop(id, "sent no message within its lease", Ending::kFailed);
  }
  for (ConnectionId connection : members_.WithoutHello(now_)) {
    members_.Detach(connection);
    out_.End(connection, absl::DeadlineExceededError("no Hello was received"));
  }
}

// Runs are visited in order of submission: earlier ones choose from the idle workers first and
// reserve the workers that they wait for.
void Machine::Settle() {
  std::vector<std::string> idle = SortByHost(IdleWorkers());
  for (auto& [number, run] : runs_) {
    if (!run.live()) continue;
    if (run.averages() && run.record.state() == v1::RUN_STATE_QUEUED) {
      size_t workers = 0;
      for (const auto& alike : GroupByDevice(run, idle)) workers = std::max(workers, alike.size());
      if (!ChooseShards(run, workers)) continue;
    }
    FormGroups(run, idle);
    MaybeStart(run);
    MaybeClose(run);
    AssignFreeParts(run);
  }
  EvictEndedRuns();
}

absl::Time Machine::NextDeadline() const {
  absl::Time next = members_.NextExpiry();
  // A deadline that has passed without an effect can only take effect with an event, so it is
  // ignored.
  auto consider = [&](absl::Time when) {
    if (when > now_) next = std::min(next, when);
  };
  for (const auto& [number, run] : runs_) {
    if (!run.live()) continue;
    const absl::Duration wait = RejoinWait(run.spec());
    for (const Slot& slot : run.slots) {
      if (slot.waiting() && slot.record().lived()) consider(slot.waiting_since() + wait);
    }
    consider(run.barrier_since + wait);
    if (!run.committing()) consider(run.round.ClosesAt(run.LiveGroups()));
  }
  return next;
}

absl::Status Machine::CheckSubmit(const v1::RunSpec& spec) const {
  if (options_.validate) CADRE_RETURN_IF_ERROR(options_.validate(spec));
  if (!Averages(spec) && GroupsOf(spec) > 1) {
    return absl::InvalidArgumentError(
        "averaging.every_steps: 0 (never) requires a single group, but cluster.groups is larger");
  }
  const auto live = std::count_if(runs_.begin(), runs_.end(),
                                  [](const auto& entry) { return entry.second.live(); });
  if (live >= options_.max_live_runs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(live, " runs are queued or running; stop some first"));
  }
  const int ranks = RanksPerGroup(spec);
  return Annotate(options_.plan(spec, ranks).status(),
                  absl::StrCat("no plan for groups of ", ranks));
}

void Machine::OnSubmit(const SubmitRun& submit) {
  if (const absl::Status status = CheckSubmit(submit.spec); !status.ok()) {
    out_.Reply(submit.request, status);
    return;
  }
  const uint32_t number = meta_.run() + 1;
  meta_.set_run(number);
  v1::RunRecord record;
  record.set_run(
      absl::StrCat("run-", number, submit.spec.name().empty() ? "" : "-", submit.spec.name()));
  record.set_lineage(absl::StrFormat(
      "%s.%016x", record.run(),
      RandomBits(submit.lineage_seed, RandomStream::kIdentity, number, meta_.starts())));
  *record.mutable_spec() = submit.spec;
  record.set_state(v1::RUN_STATE_QUEUED);
  record.set_step(FirstStep(submit.spec));
  record.set_next_evaluation_epoch(EvaluationEpochs(submit.spec));
  const Run& run = runs_.try_emplace(number, record, now_).first->second;
  Save(run);
  Count("runs_submitted");
  out_.Reply(submit.request, absl::OkStatus(), run.id());
}

void Machine::OnStop(const StopRun& stop) {
  Run* const run = FindRun(stop.run);
  if (run == nullptr) {
    out_.Reply(stop.request, absl::NotFoundError(absl::StrCat("no such run: ", stop.run)));
    return;
  }
  if (run->live()) {
    EndRun(*run, v1::RUN_STATE_STOPPED, stop.reason.empty() ? "stopped by request" : stop.reason);
  }
  out_.Reply(stop.request, absl::OkStatus(), run->id());
}

void Machine::EndRun(Run& run, v1::RunState state, absl::string_view reason) {
  run.record.set_state(state);
  run.record.set_reason(std::string(reason));
  run.record.set_ended_ms(absl::ToUnixMillis(now_));
  run.record.clear_evaluating();
  for (Slot& slot : run.slots) {
    ReleaseMembers(slot, absl::StrCat("the run has ended: ", reason));
    slot = Slot(run.id(), slot.group(), now_);
  }
  // Without their records, a restart finds no group of this run.
  out_.EraseBelow(GroupsPrefix(run.id()));
  for (const std::string& name : run.record.shards()) {
    const Member* const member = members_.Aggregator(name);
    if (member != nullptr) SendCloseRun(run, *member);
  }
  run.closing.reset();
  run.barrier_since = absl::InfiniteFuture();
  Save(run);
  Count(state == v1::RUN_STATE_DONE     ? "runs_done"
        : state == v1::RUN_STATE_FAILED ? "runs_failed"
                                        : "runs_stopped");
}

// The oldest ended runs are removed first; their records are erased with them.
void Machine::EvictEndedRuns() {
  int ended = 0;
  for (const auto& [number, run] : runs_) ended += run.live() ? 0 : 1;
  for (auto it = runs_.begin(); it != runs_.end() && ended > options_.max_ended_runs;) {
    if (it->second.live()) {
      ++it;
      continue;
    }
    out_.EraseOne(RunKey(it->second.id()));
    out_.EraseBelow(CommitsPrefix(it->second.id()));
    it = runs_.erase(it);
    --ended;
  }
}

// Looks the run up by the number in its id ("run-<number>..."); the rest of the id must be equal as
// well.
Run* Machine::FindRun(absl::string_view run_id) {
  return const_cast<Run*>(std::as_const(*this).FindRun(run_id));
}

const Run* Machine::FindRun(absl::string_view run_id) const {
  auto it = runs_.find(RunNumber(run_id));
  return it == runs_.end() || it->second.id() != run_id ? nullptr : &it->second;
}

bool Machine::Ended(absl::string_view run_id) const {
  const Run* const run = FindRun(run_id);
  return run == nullptr || !run->live();
}

void Machine::Count(absl::string_view name, uint64_t amount) {
  (*meta_.mutable_counters())[std::string(name)] += amount;
  meta_changed_ = true;
}

void Machine::Save(const Run& run) { out_.Put(RunKey(run.id()), run.record); }

void Machine::Save(const Slot& slot) {
  out_.Put(GroupKey(slot.record().run(), slot.group()), slot.record());
}

void Machine::Save(const Member& member) { out_.Put(MemberKey(member.id()), member.record); }

}  // namespace cadre
