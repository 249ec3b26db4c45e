// Routes events to the cluster and to the runs, and settles the runs that an event concerns.
//
// There are two steps. The first, Handle, changes the state as the event requires: a lease is
// renewed, a contribution is added, a group is fenced. The second, Settle, does everything that has
// become possible, in one fixed order over the runs: choose shards, form groups, start them, close
// a round, assign parts of an evaluation. Settle looks only at the state and the time, never at the
// event, so there are no pending tasks: after a restart, the first event settles everything that is
// due. It follows once after all events that wait, so a thousand members that join cost one.
//
// Settle forms a limited number of groups (Runs::kMaxFormations), so that no event waits for a
// thousand plans. The rest is due immediately, after the events that have come meanwhile.
//
// Runs::Settle visits the runs that an event concerns and those whose deadline has passed. Runs
// that wait for workers are visited together, because earlier runs reserve idle workers: whenever
// the set of idle workers or one of the waiting runs has changed. All other events, heartbeats
// above all, cost a few look-ups, whatever the number of members.
//
// Messages in both directions may be lost with a stream. Members send unanswered messages again;
// Run::OnWorkerRejoined repeats the messages of the coordinator for the current generation. All
// handlers therefore accept duplicates.
//
// Determinism: the containers are ordered, the records are serialized deterministically
// (outbox.cc), and random numbers are functions of seeds in the events. The simulation and the
// tests rely on it.
#include "coordinator/machine/machine.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// A function object for std::visit made of one lambda per alternative.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

// The rank that sends a worker's message.
struct Sender {
  const v1::RankSlot* place = nullptr;
  // Whether only rank 0 may send the message.
  bool lead = false;
  // Whether the message can make something possible that Settle does.
  bool settles = true;
};

Sender SenderOf(const v1::MemberMessage& message) {
  switch (message.body_case()) {
    case v1::MemberMessage::kPrepared:
      return {&message.prepared().place()};
    case v1::MemberMessage::kProgress:
      return {&message.progress().place(), /*lead=*/true, /*settles=*/false};
    case v1::MemberMessage::kContributed:
      return {&message.contributed().place(), /*lead=*/true};
    case v1::MemberMessage::kAdopted:
      return {&message.adopted().place(), /*lead=*/true};
    case v1::MemberMessage::kEvaluated:
      return {&message.evaluated().place(), /*lead=*/true};
    case v1::MemberMessage::kCheckpointed:
      return {&message.checkpointed().place(), /*lead=*/true};
    case v1::MemberMessage::kMeasured:
      return {&message.measured().place(), /*lead=*/true, /*settles=*/false};
    case v1::MemberMessage::kTraced:
      return {&message.traced().place(), /*lead=*/false, /*settles=*/false};
    case v1::MemberMessage::kRestaged:
      return {&message.restaged().place()};
    default:
      return {};
  }
}

}  // namespace

Machine::Machine(Options options)
    : options_(std::move(options)),
      cluster_(options_),
      planner_(options_, cluster_),
      runs_({cluster_, planner_, options_}),
      deleted_(cluster_),
      stored_(options_, cluster_, runs_, deleted_),
      reserved_ranks_(cluster_, runs_) {}

// Leases start again: the coordinator cannot know how long the members were silent.
absl::StatusOr<std::vector<Action>> Machine::Restore(
    const std::map<std::string, std::string>& records, absl::Time now, uint64_t epoch) {
  cluster_.Begin(now);
  v1::MetaRecord meta;
  for (const auto& [key, bytes] : records) {
    if (key == kMetaKey) {
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, meta));
    } else if (absl::StartsWith(key, kMemberPrefix)) {
      v1::MemberRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      cluster_.members().Add(record, now);
      if (!record.program_ended().empty()) {
        cluster_.programs().NoteEnded(record.reservation().program(), record.program_ended());
      }
    } else if (absl::StartsWith(key, kRunPrefix)) {
      v1::RunRecord record;
      CADRE_RETURN_IF_ERROR(ParseRun(records, key, record));
      runs_.Add(record);
    } else if (absl::StartsWith(key, kDeletedPrefix)) {
      v1::DeletedRunRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      deleted_.Load(record);
    } else if (absl::StartsWith(key, kEventPrefix)) {
      CADRE_RETURN_IF_ERROR(cluster_.LoadEvent(key, bytes));
    } else if (absl::StartsWith(key, kStandingPrefix)) {
      v1::StandingRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      cluster_.standings().Load(record);
    } else if (absl::StartsWith(key, kCordonedAggregatorPrefix)) {
      v1::CordonedAggregatorRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      cluster_.queue().SetCordoned(record.name(), true);
      cluster_.queue().SetDraining(record.name(), record.draining());
    } else if (absl::StartsWith(key, kLostRankPrefix)) {
      v1::LostRankRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      cluster_.programs().Load(record, cluster_.now());
    } else if (absl::StartsWith(key, kProfilePrefix)) {
      v1::LayerTimesRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      planner_.Load(key, record);
    }
  }
  cluster_.members().AwaitFirstContact();
  cluster_.Restore(meta, epoch);
  for (auto& [number, run] : runs_.all()) CADRE_RETURN_IF_ERROR(run.Load(records));
  for (auto& [number, run] : runs_.all()) run.groups().PlaceMembers();
  if (meta.backup()) {
    // Workers do not return to generations that have ended since.
    for (auto& [number, run] : runs_.all()) {
      run.groups().FenceAll("the coordinator has started with a backup");
    }
  }
  reserved_ranks_.RenewLimits();
  cluster_.UpdateIdle();
  return cluster_.Take();
}

std::vector<Action> Machine::Handle(const Event& event, absl::Time now) {
  cluster_.Begin(now);
  std::visit(
      Overloaded{
          [this](const StreamOpened& e) {
            cluster_.members().AddPending(e.connection, cluster_.now());
          },
          [this](const StreamClosed& e) { cluster_.Close(e.connection); },
          [this](const MessageReceived& e) { OnMessage(e); },
          [this](const MessageRefused& e) { cluster_.Refuse(e.connection, e.refusal, e.reason); },
          [this](const SubmitRun& e) { OnSubmit(e); },
          [this](const StopRun& e) {
            ReplyFor(e.request, e.run, [&](Run& run) {
              const absl::Status one = runs_.CheckOneOfName(e.run, /*only_live=*/true);
              if (one.ok()) run.Stop(e.reason);
              return one;
            });
          },
          [this](const ScaleRun& e) {
            ReplyFor(e.request, e.run, [&](Run& run) { return run.Scale(e.groups); });
          },
          [this](const ResumeRun& e) {
            ReplyFor(e.request, e.run, [](Run& run) { return run.Resume(); });
          },
          [this](const RollBackRun& e) { OnRollBack(e); },
          [this](const DeleteRun& e) { OnDelete(e); },
          [this](const AdoptRuns& e) { stored_.Adopt(e); },
          [this](const TraceGroup& e) { OnTrace(e); },
          [this](const CancelTrace& e) {
            for (auto& [number, run] : runs_.all()) run.traces().Cancel(e.request);
          },
          [this](const CordonMembers& e) { OnCordon(e); },
          [this](const PlansFound& e) {
            planner_.OnPlansFound(e);
            runs_.Visit(e.run);
          },
          [this](const StepPredicted& e) { runs_.OnPredicted(e); },
          [this](const Tick&) {
            ExpireMembers();
            reserved_ranks_.EndIncomplete();
          },
          [this](const Stalled& e) {
            cluster_.members().Extend(e.length);
            reserved_ranks_.RenewLimits();
          },
          [this](const LimitReached& e) { cluster_.SetLimitReached(e.limit); },
      },
      event);
  for (const Cluster::RefusedMessage& refused : cluster_.TakeRefused()) OnRefused(refused);
  for (const std::string& id : cluster_.TakeClosed()) {
    if (const Member* const member = cluster_.members().Find(id)) OnClosed(*member);
  }
  stored_.FinishAdoption();
  cluster_.UpdateIdle();
  return cluster_.Take();
}

std::vector<Action> Machine::Settle(absl::Time now) {
  cluster_.Begin(now);
  Runs::Settled settled;
  bool form = false;
  bool ended = false;
  do {
    settled = runs_.Settle(std::exchange(form, true));
    ended = ended || settled.ended;
  } while (settled.released);
  if (ended || cluster_.now() >= retention_at_) ApplyRetention();
  for (const std::string& program : cluster_.members().TakeChangedPrograms()) {
    reserved_ranks_.SendMissingRanks(program);
  }
  cluster_.UpdateIdle();
  return cluster_.Take();
}

// ---- Members

void Machine::OnMessage(const MessageReceived& received) {
  Membership& members = cluster_.members();
  Member* const member = members.ByConnection(received.connection);
  if (member == nullptr && !members.IsPending(received.connection)) return;
  if (received.message.has_hello()) {
    if (member == nullptr) return OnHello(received.connection, received.message.hello());
    return cluster_.Refuse(received.connection, v1::REFUSAL_OUT_OF_ORDER,
                           "Hello was sent twice on one stream");
  }
  if (member == nullptr) {
    return cluster_.Refuse(received.connection, v1::REFUSAL_OUT_OF_ORDER,
                           "the first message must be Hello");
  }
  members.Renew(*member, cluster_.now());
  OnMemberMessage(*member, received.message);
}

void Machine::OnMemberMessage(Member& member, const v1::MemberMessage& message) {
  if (message.has_heartbeat()) {
    const std::vector<v1::DelayedOrder> before = member.delayed_orders;
    cluster_.OnHeartbeat(member, message.heartbeat());
    for (const v1::DelayedOrder& order : before) runs_.Visit(order.run());
    for (const v1::DelayedOrder& order : member.delayed_orders) {
      if (Run* const run = runs_.Visit(order.run())) run->OnDelayedOrder(member, order);
    }
    for (const v1::RunWarning& warning : message.heartbeat().warnings()) {
      OnRunWarning(member, warning);
    }
    if (!member.worker()) runs_.VisitWaitingForAggregators(cluster_.queue().AnyDraining());
    if (!member.place.has_value()) return reserved_ranks_.SendReasonOfRun(member);
    Run& run = *runs_.Find(member.place->run());
    if (run.OnHeartbeat(member, message.heartbeat())) runs_.Visit(run);
  } else if (message.has_goodbye()) {
    OnGoodbye(member, message.goodbye());
  } else if (member.worker()) {
    OnWorkerMessage(member, message);
  } else {
    OnAggregatorMessage(member, message);
  }
}

// Warnings are repeated in every heartbeat, so the run is visited only for a new one.
void Machine::OnRunWarning(const Member& member, const v1::RunWarning& warning) {
  Run* const run = runs_.Find(warning.run());
  if (run == nullptr) return;
  const bool added = run->stored().AddWarning(
      absl::StrCat(member.worker() ? "worker " : "aggregator ", member.record.name(), " on ",
                   member.record.host(), ": ", warning.text()));
  if (added) runs_.Visit(*run);
}

// A message for another generation is normal after a fence: the member may have sent it before it
// received Release. The message is refused, but the stream stays open.
void Machine::OnWorkerMessage(Member& member, const v1::MemberMessage& message) {
  if (message.has_group_failed()) {
    // All ranks report the loss of one rank; only the first report finds the generation alive.
    const v1::GroupFailed& failed = message.group_failed();
    if (!member.Holds(failed.place())) {
      ReleaseLate(member, failed.place());
    }
    if (Run* const run = runs_.Visit(failed.place().run())) run->OnGroupFailed(member, failed);
    return;
  }
  const Sender sender = SenderOf(message);
  if (sender.place == nullptr) {
    return cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                           "not a message that workers send");
  }
  const v1::RankSlot& place = *sender.place;
  Run* const run = runs_.Find(place.run());
  if (run == nullptr) {
    cluster_.CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    cluster_.SendRelease(member.id(), place, absl::StrCat("no such run: ", place.run()),
                         v1::RUN_STATE_UNSPECIFIED);
  } else if (!member.Holds(place)) {
    cluster_.CountRefusal(v1::REFUSAL_STALE_GENERATION);
    ReleaseLate(member, place);
  } else if (sender.lead && place.rank() != 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "only rank 0 may send this message");
  } else {
    if (sender.settles) runs_.Visit(*run);
    run->Touch();
    run->OnWorkerMessage(member, message);
  }
}

void Machine::ReleaseLate(const Member& member, const v1::RankSlot& place) {
  const Run* const run = runs_.Find(place.run());
  cluster_.SendRelease(member.id(), place, "the generation has ended",
                       run != nullptr ? run->record().state() : v1::RUN_STATE_UNSPECIFIED);
}

void Machine::OnAggregatorMessage(const Member& member, const v1::MemberMessage& message) {
  if (message.has_run_report()) return stored_.OnReport(member, message.run_report());
  // A shard of a run that is not deleted may have moved from the aggregator.
  if (message.has_run_deleted() && stored_.OnRunDeleted(member, message.run_deleted())) return;
  if (!message.has_run_opened() && !message.has_applied() && !message.has_shard_copied() &&
      !message.has_run_deleted()) {
    return cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                           "not a message that aggregators send");
  }
  Run* const run = runs_.Visit(message.has_applied()        ? message.applied().run()
                               : message.has_shard_copied() ? message.shard_copied().run()
                               : message.has_run_deleted()  ? message.run_deleted().run()
                                                            : message.run_opened().run());
  if (run == nullptr) return cluster_.CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
  run->OnAggregatorMessage(member, message);
}

void Machine::OnHello(ConnectionId connection, const v1::Hello& hello) {
  // The member would not receive a refusal of a lower epoch.
  if (!cluster_.HasEpochOf(connection, hello)) return;
  if (stored_.Refuse(connection, hello) || reserved_ranks_.Refuse(connection, hello)) return;
  const std::optional<Cluster::Joined> joined = cluster_.OnHello(connection, hello);
  if (!joined.has_value()) return;
  Member& member = *joined->member;
  for (const std::string& id : joined->replaced) {
    Drop(id, "was restarted as a new process", v1::FAILURE_CAUSE_LEASE);
  }
  cluster_.Welcome(member, connection);
  // With its former stream.
  if (!member.worker()) OnAggregatorLost(member);
  if (member.record.has_reservation()) reserved_ranks_.OnJoined(member, joined->known);
  if (!member.worker()) {
    OnAggregatorJoined(member, hello);
  } else if (joined->known) {
    OnWorkerRejoined(member, hello);
  }
}

void Machine::OnAggregatorJoined(const Member& member, const v1::Hello& hello) {
  stored_.OnJoined(member, hello);
  for (auto& [number, run] : runs_.all()) run.OnAggregatorJoined(member, hello);
}

void Machine::OnWorkerRejoined(const Member& member, const v1::Hello& hello) {
  const bool claims = hello.place().generation() != 0;
  const bool agrees = claims && member.Holds(hello.place());
  if (claims && !agrees) {
    cluster_.CountRefusal(v1::REFUSAL_STALE_GENERATION);
    ReleaseLate(member, hello.place());
  }
  if (member.place) runs_.Visit(member.place->run())->groups().OnRejoined(member, agrees);
}

void Machine::OnGoodbye(const Member& member, const v1::Goodbye& goodbye) {
  // Copied, because Drop destroys the member that owns it.
  const v1::MemberRecord left = member.record;
  Drop(left.member_id(), absl::StrCat("left: ", goodbye.reason()), kReleased);
  if (!left.has_reservation()) return;
  Run* const run = runs_.LiveRunOf(left.reservation());
  if (run == nullptr) return;  // it has ended, and its ranks leave
  if (goodbye.finished()) run->OnLoopEnded();
  if (left.reservation().ranks() == 1) return;
  reserved_ranks_.End(left.reservation().program(),
                      absl::StrCat("rank ", left.reservation().rank(),
                                   " of this program has left: ", goodbye.reason()));
}

// The member would send the message again after each reconnect. Without its rank it does not.
void Machine::OnRefused(const Cluster::RefusedMessage& refused) {
  const Member* const member = cluster_.members().Find(refused.member_id);
  if (member == nullptr || !member->place.has_value()) return;
  const std::string reason = absl::StrCat("a message was refused: ", refused.reason);
  const v1::Reservation reservation = member->record.reservation();
  runs_.Visit(member->place->run())->FailRefused(*member, reason);
  if (member->record.has_reservation()) {
    reserved_ranks_.End(reservation.program(),
                        absl::StrCat("rank ", reservation.rank(), " of this program: ", reason));
  }
}

void Machine::OnClosed(const Member& member) {
  if (!member.worker()) {
    OnAggregatorLost(member);
  } else if (member.place.has_value()) {
    runs_.Visit(member.place->run())->OnWorkerClosed(member);
  }
}

void Machine::OnAggregatorLost(const Member& member) {
  stored_.OnAggregatorLost(member.record.name());
  deleted_.OnAggregatorLost(member.record.name());
  for (auto& [number, run] : runs_.all()) run.OnAggregatorLost(member.record.name());
  runs_.VisitAll();
}

void Machine::Drop(const std::string& member_id, absl::string_view reason, v1::FailureCause cause) {
  const std::optional<Member> member = cluster_.Remove(member_id, reason);
  if (!member.has_value()) return;
  if (!member->worker()) return OnAggregatorLost(*member);
  if (cause == v1::FAILURE_CAUSE_LEASE) {
    cluster_.NoteLost(member->record.host());
    reserved_ranks_.OnLost(*member);
  }
  if (member->place.has_value()) {
    const std::string text =
        absl::StrCat("worker ", member_id, " (", member->record.name(), ") ", reason);
    if (cause != kReleased) {
      cluster_.standings().Fail(Cluster::WorkerOf(*member), cause, text, cluster_.now());
    }
    runs_.Visit(member->place->run())->OnWorkerLost(*member->place, text, cause);
  }
}

// Runs may wait for an aggregator that is readmitted.
void Machine::OnCordon(const CordonMembers& cordon) {
  Replied reply = cluster_.OnCordonMembers(cordon);
  for (const std::string& id : reply.members) {
    const Member& member = *cluster_.members().Find(id);
    if (!cordon.drain || member.worker()) continue;
    for (const auto& [number, run] : runs_.all()) {
      if (run.HasSoleModelOn(member.record.name())) reply.sole_models.push_back(run.id());
    }
  }
  cluster_.out().Reply(std::move(reply));
  runs_.VisitAll();
}

void Machine::ExpireMembers() {
  for (const std::string& id : cluster_.members().Expired(cluster_.now())) {
    cluster_.Count("leases_lost");
    Drop(id, "sent no message within its lease", v1::FAILURE_CAUSE_LEASE);
  }
  for (ConnectionId connection : cluster_.members().WithoutHello(cluster_.now())) {
    cluster_.members().Detach(connection);
    cluster_.out().End(connection, absl::DeadlineExceededError("no Hello was received"));
  }
}

// ---- Runs (see also machine_runs.cc)

void Machine::OnTrace(const TraceGroup& trace) {
  // Unique across restarts: a worker may still run a trace of the previous process.
  const uint64_t number = (uint64_t{cluster_.meta().starts()} << 32) | ++last_trace_;
  Run* const run = runs_.Visit(IdOf(trace.run));
  const absl::Status started =
      run == nullptr ? NoSuchRun(trace.run) : run->traces().Start(trace, number);
  if (!started.ok()) cluster_.out().Reply({.request = trace.request, .status = started});
}

absl::Time Machine::NextDeadline() const {
  return std::min({cluster_.members().NextExpiry(), cluster_.NextAvailable(), runs_.NextDeadline(),
                   cluster_.programs().NextDeadline(), stored_.NextDeadline(), retention_at_});
}

std::string Machine::IdOf(absl::string_view run) const {
  const Run* const found = runs_.Resolve(run);
  return found == nullptr ? "" : found->id();
}

std::vector<Action> HandleOne(Machine& machine, const Event& event, absl::Time now) {
  std::vector<Action> actions = machine.Handle(event, now);
  std::vector<Action> settled = machine.Settle(now);
  std::move(settled.begin(), settled.end(), std::back_inserter(actions));
  return actions;
}

}  // namespace cadre
