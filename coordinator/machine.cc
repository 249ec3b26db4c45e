// Events, and the life of runs. Part of Machine.
#include "coordinator/machine.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status.h"
#include "coordinator/keys.h"

namespace cadre {

Machine::Machine(Options options) : options_(std::move(options)), members_(options_.lease) {}

std::vector<Action> Machine::Handle(const Event& event, absl::Time now) {
  now_ = std::max(now_, now);
  if (started_ == absl::InfinitePast()) started_ = now_;
  searched_.clear();
  considered_ = false;
  Dispatch(event);
  Settle();
  if (std::exchange(meta_changed_, false)) out_.Put(kMetaKey, meta_);
  return out_.Take();
}

void Machine::Dispatch(const Event& event) {
  std::visit(
      [this](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, StreamOpened>) {
          members_.Greet(e.connection, now_);
        } else if constexpr (std::is_same_v<E, StreamClosed>) {
          OnStreamClosed(e.connection);
        } else if constexpr (std::is_same_v<E, MessageReceived>) {
          OnMessage(e);
        } else if constexpr (std::is_same_v<E, MessageRefused>) {
          Refuse(e.connection, e.refusal, e.reason);
        } else if constexpr (std::is_same_v<E, SubmitRun>) {
          OnSubmit(e);
        } else if constexpr (std::is_same_v<E, StopRun>) {
          OnStop(e);
        } else if constexpr (std::is_same_v<E, TraceGroup>) {
          OnTraceGroup(e);
        } else if constexpr (std::is_same_v<E, LeaveTrace>) {
          OnLeaveTrace(e);
        } else {
          static_assert(std::is_same_v<E, Tick>);
          ExpireMembers();
        }
      },
      event);
}

void Machine::ExpireMembers() {
  for (const std::string& id : members_.Expired(now_)) {
    Count("leases_lost");
    Drop(id, "was not heard of for a whole lease", Ending::kFailed);
  }
  for (ConnectionId connection : members_.Mute(now_)) {
    members_.Detach(connection);
    out_.End(connection, absl::DeadlineExceededError("no Hello came"));
  }
}

// Earlier runs have the first pick of idle workers; what they wait for, later ones do not get.
void Machine::Settle() {
  std::vector<std::string> idle = ByHost(IdleWorkers());
  for (auto& [number, job] : jobs_) {
    if (!job.live()) continue;
    if (job.averages() && job.record.state() == v1::QUEUED) {
      size_t most = 0;
      for (const auto& workers : ByDevice(job, idle)) most = std::max(most, workers.size());
      if (!ChooseShards(job, most)) continue;
    }
    FormGroups(job, idle);
    MaybeStart(job);
    MaybeClose(job);
    HandOutParts(job);
  }
  ForgetOldRuns();
}

absl::Time Machine::NextDeadline() const {
  absl::Time next = members_.NextExpiry();
  // What is due already and was not done waits for an event, not for time.
  auto consider = [&](absl::Time when) {
    if (when > now_) next = std::min(next, when);
  };
  for (const auto& [number, job] : jobs_) {
    if (!job.live()) continue;
    const absl::Duration wait = RejoinWait(job.spec());
    for (const Slot& slot : job.slots) {
      if (slot.waiting() && slot.record().lived()) consider(slot.waiting_since() + wait);
    }
    consider(job.barrier_since + wait);
    if (!job.committing()) consider(job.round.ClosesAt(job.LiveGroups()));
  }
  return next;
}

absl::Status Machine::CheckSubmit(const v1::RunSpec& spec) const {
  if (options_.validate) CADRE_RETURN_IF_ERROR(options_.validate(spec));
  if (!Averages(spec) && GroupsOf(spec) > 1) {
    return absl::InvalidArgumentError(
        "averaging.every_steps: 0 (never) is only for one group; cluster.groups asks for more");
  }
  const auto live = std::count_if(jobs_.begin(), jobs_.end(),
                                  [](const auto& entry) { return entry.second.live(); });
  if (static_cast<size_t>(live) >= options_.most_live_runs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(live, " runs wait or run already; stop some first"));
  }
  const int ranks = static_cast<int>(RanksPerGroup(spec));
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
  record.set_state(v1::QUEUED);
  record.set_step(FirstStep(submit.spec));
  record.set_next_evaluation_epoch(EvaluationEpochs(submit.spec));
  const Job& job = jobs_.try_emplace(number, record, now_).first->second;
  Save(job);
  Count("runs_submitted");
  out_.Reply(submit.request, absl::OkStatus(), job.id());
}

void Machine::OnStop(const StopRun& stop) {
  Job* const job = FindJob(stop.run);
  if (job == nullptr) {
    out_.Reply(stop.request, absl::NotFoundError(absl::StrCat("there is no run ", stop.run)));
    return;
  }
  if (job->live()) {
    EndRun(*job, v1::STOPPED, stop.reason.empty() ? "stopped by request" : stop.reason);
  }
  out_.Reply(stop.request, absl::OkStatus(), job->id());
}

void Machine::EndRun(Job& job, v1::RunState state, absl::string_view reason) {
  job.record.set_state(state);
  job.record.set_reason(std::string(reason));
  job.record.set_ended_ms(absl::ToUnixMillis(now_));
  job.record.clear_evaluating();
  for (Slot& slot : job.slots) {
    ReleaseMembers(slot, absl::StrCat("the run has ended: ", reason));
    slot = Slot(job.id(), slot.group(), now_);
  }
  out_.EraseBelow(GroupsPrefix(job.id()));
  for (const std::string& name : job.record.shards()) {
    const Member* const member = members_.Aggregator(name);
    if (member != nullptr) SendCloseRun(job, *member);
  }
  job.closing.reset();
  job.barrier_since = absl::InfiniteFuture();
  Save(job);
  Count(state == v1::DONE ? "runs_done" : state == v1::FAILED ? "runs_failed" : "runs_stopped");
}

void Machine::ForgetOldRuns() {
  size_t ended = 0;
  for (const auto& [number, job] : jobs_) ended += job.live() ? 0 : 1;
  for (auto it = jobs_.begin(); it != jobs_.end() && ended > options_.most_ended_runs;) {
    if (it->second.live()) {
      ++it;
      continue;
    }
    out_.EraseOne(RunKey(it->second.id()));
    out_.EraseBelow(CommitsPrefix(it->second.id()));
    it = jobs_.erase(it);
    --ended;
  }
}

Job* Machine::FindJob(absl::string_view run) {
  return const_cast<Job*>(std::as_const(*this).FindJob(run));
}

const Job* Machine::FindJob(absl::string_view run) const {
  auto it = jobs_.find(RunNumber(run));
  return it == jobs_.end() || it->second.id() != run ? nullptr : &it->second;
}

bool Machine::Ended(absl::string_view run) const {
  const Job* const job = FindJob(run);
  return job == nullptr || !job->live();
}

void Machine::Count(absl::string_view name, uint64_t amount) {
  (*meta_.mutable_counters())[std::string(name)] += amount;
  meta_changed_ = true;
}

void Machine::Save(const Job& job) { out_.Put(RunKey(job.id()), job.record); }

void Machine::Save(const Slot& slot) {
  out_.Put(GroupKey(slot.record().run(), slot.group()), slot.record());
}

void Machine::Save(const Member& member) { out_.Put(MemberKey(member.id()), member.record); }

}  // namespace cadre
