// Routes events to the cluster and to the runs, and settles the runs that an event concerns.
//
// Handle has two steps. The first changes the state as the event requires: a lease is renewed, a
// contribution is added, a group is fenced. The second, Settle, does everything that has become
// possible, in one fixed order over the runs: choose shards, form groups, start them, close a
// round, assign parts of an evaluation. Settle looks only at the state and the time, never at the
// event, so there are no pending tasks: after a restart, the first event settles everything that is
// due.
//
// Settle visits the runs that an event concerns and those whose deadline has passed. Runs that wait
// for workers are visited together, because earlier runs reserve idle workers: whenever the set of
// idle workers or one of the waiting runs has changed. All other events, heartbeats above all, cost
// a few look-ups, whatever the number of members.
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
    : options_(std::move(options)), cluster_(options_), planner_(options_, cluster_) {}

// Leases start again: the coordinator cannot know how long the members were silent.
absl::StatusOr<std::vector<Action>> Machine::Restore(
    const std::map<std::string, std::string>& records, absl::Time now) {
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
      runs_.try_emplace(RunNumber(record.run()), record, RunContext{cluster_, planner_, options_});
    } else if (absl::StartsWith(key, kDeletedPrefix)) {
      v1::DeletedRunRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      deleted_[record.run()] = record;
    } else if (absl::StartsWith(key, kEventPrefix)) {
      CADRE_RETURN_IF_ERROR(cluster_.LoadEvent(key, bytes));
    } else if (absl::StartsWith(key, kStandingPrefix)) {
      v1::StandingRecord record;
      CADRE_RETURN_IF_ERROR(ParseRecord(key, bytes, record));
      cluster_.standings().Load(record);
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
  cluster_.Restore(meta);
  for (auto& [number, run] : runs_) CADRE_RETURN_IF_ERROR(run.Load(records));
  for (auto& [number, run] : runs_) run.PlaceMembers();
  if (meta.backup()) {
    // Workers do not return to generations that have ended since.
    for (auto& [number, run] : runs_) run.FenceAll("the coordinator has started with a backup");
  }
  RenewReturnLimits();
  VisitAll();
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
              const absl::Status one = CheckOneOfName(e.run, /*only_live=*/true);
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
          [this](const DeleteRun& e) { OnDelete(e); },
          [this](const AdoptRuns& e) { OnAdopt(e); },
          [this](const TraceGroup& e) { OnTrace(e); },
          [this](const CancelTrace& e) {
            for (auto& [number, run] : runs_) run.CancelTrace(e.request);
          },
          [this](const CordonMembers& e) { cluster_.OnCordonMembers(e); },
          [this](const PlansFound& e) {
            planner_.OnPlansFound(e);
            Visit(e.run);
          },
          [this](const Tick&) {
            ExpireMembers();
            EndIncompletePrograms();
          },
          [this](const Stalled& e) {
            cluster_.members().Extend(e.length);
            RenewReturnLimits();
          },
          [this](const LimitReached& e) { cluster_.SetLimitReached(e.limit); },
      },
      event);
  for (const Cluster::RefusedMessage& refused : cluster_.TakeRefused()) OnRefused(refused);
  for (const std::string& id : cluster_.TakeClosed()) {
    if (const Member* const member = cluster_.members().Find(id)) OnClosed(*member);
  }
  FinishAdoption();
  Settle();
  for (const std::string& program : cluster_.members().TakeChangedPrograms()) {
    SendMissingRanks(program);
  }
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
    for (const v1::DelayedOrder& order : before) Visit(order.run());
    for (const v1::DelayedOrder& order : member.delayed_orders) {
      if (Run* const run = Visit(order.run())) run->OnDelayedOrder(member, order);
    }
    for (const v1::RunWarning& warning : message.heartbeat().warnings()) {
      OnRunWarning(member, warning);
    }
    if (!member.place.has_value()) return SendReasonOfRun(member);
    Run& run = runs_.at(RunNumber(member.place->run()));
    if (run.OnHeartbeat(member, message.heartbeat())) unsettled_.insert(run.number());
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
  if (FindRun(warning.run()) == nullptr) return;
  Run& run = runs_.at(RunNumber(warning.run()));
  const bool added =
      run.AddWarning(absl::StrCat(member.worker() ? "worker " : "aggregator ", member.record.name(),
                                  " on ", member.record.host(), ": ", warning.text()));
  if (added) unsettled_.insert(run.number());
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
    if (Run* const run = Visit(failed.place().run())) run->OnGroupFailed(member, failed);
    return;
  }
  const Sender sender = SenderOf(message);
  if (sender.place == nullptr) {
    return cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                           "not a message that workers send");
  }
  const v1::RankSlot& place = *sender.place;
  if (FindRun(place.run()) == nullptr) {
    cluster_.CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
    cluster_.SendRelease(member.id(), place, absl::StrCat("no such run: ", place.run()),
                         v1::RUN_STATE_UNSPECIFIED);
  } else if (!member.Holds(place)) {
    cluster_.CountRefusal(v1::REFUSAL_STALE_GENERATION);
    ReleaseLate(member, place);
  } else if (sender.lead && place.rank() != 0) {
    cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED, "only rank 0 may send this message");
  } else {
    Run& run = runs_.at(RunNumber(place.run()));
    if (sender.settles) unsettled_.insert(run.number());
    run.Touch();
    run.OnWorkerMessage(member, message);
  }
}

void Machine::ReleaseLate(const Member& member, const v1::RankSlot& place) {
  const Run* const run = FindRun(place.run());
  cluster_.SendRelease(member.id(), place, "the generation has ended",
                       run != nullptr ? run->record().state() : v1::RUN_STATE_UNSPECIFIED);
}

void Machine::OnAggregatorMessage(const Member& member, const v1::MemberMessage& message) {
  if (message.has_run_report()) {
    const v1::RunReport& report = message.run_report();
    if (adoption_.has_value()) adoption_->Add(member.record.name(), report);
    if (Run* const run = Visit(report.run())) OnReportOf(*run, member, report);
    return;
  }
  if (message.has_run_deleted()) return OnRunDeleted(member, message.run_deleted());
  if (!message.has_run_opened() && !message.has_applied()) {
    return cluster_.Refuse(member.connection, v1::REFUSAL_MALFORMED,
                           "not a message that aggregators send");
  }
  Run* const run =
      Visit(message.has_applied() ? message.applied().run() : message.run_opened().run());
  if (run == nullptr) return cluster_.CountRefusal(v1::REFUSAL_UNKNOWN_RUN);
  run->OnAggregatorMessage(member, message);
}

// The name of an aggregator belongs to the process that stores its shards, as long as that process
// is connected.
bool Machine::IsImpostor(const v1::Hello& hello) const {
  if (hello.role() != v1::ROLE_AGGREGATOR) return false;
  const Member* const member = cluster_.members().Aggregator(hello.name());
  return member != nullptr && member->connected() &&
         member->record.incarnation() != hello.incarnation() &&
         (LacksStoredRun(hello) || std::any_of(runs_.begin(), runs_.end(), [&](const auto& entry) {
            return entry.second.shards().Lacks(hello);
          }));
}

// An ended run may have been removed by the limit of the aggregator.
bool Machine::LacksStoredRun(const v1::Hello& hello) const {
  const auto stored = stored_runs_.find(hello.name());
  if (stored == stored_runs_.end()) return false;
  return std::any_of(stored->second.begin(), stored->second.end(), [&](const auto& entry) {
    const auto& [id, lineage] = entry;
    const Run* const run = FindRun(id);
    return (run == nullptr || run->live()) && !IsDeleted(id, lineage) &&
           std::none_of(hello.shards().begin(), hello.shards().end(),
                        [&](const v1::ShardState& shard) { return shard.lineage() == lineage; });
  });
}

void Machine::OnHello(ConnectionId connection, const v1::Hello& hello) {
  if (IsImpostor(hello)) {
    return cluster_.Refuse(
        connection, v1::REFUSAL_MALFORMED,
        absl::StrCat("another process named ", hello.name(),
                     " is connected and stores shards that ",
                     "this one lacks; use another name, or stop that process first"));
  }
  if (const Run* const run = RunOfOtherLineage(hello)) {
    return cluster_.Refuse(
        connection, v1::REFUSAL_WRONG_LINEAGE,
        absl::StrCat("aggregator ", hello.name(), " stores another run ", run->id(),
                     ", of another cluster or of a store that was lost; use another --data-dir, or "
                     "move the folder ",
                     run->id(), " out of it"));
  }
  if (const Member* const other = OtherOfRank(hello)) {
    const v1::Reservation& reservation = hello.reservation();
    return cluster_.Refuse(
        connection, v1::REFUSAL_MALFORMED,
        absl::StrCat("rank ", reservation.rank(), " of ", reservation.ranks(), " of program ",
                     reservation.program(), " is the process '", hello.name(), "' on ",
                     hello.host(), ", but also '", other->record.name(), "' on ",
                     other->record.host(), ", of ", other->record.reservation().ranks(),
                     " ranks, which is connected"));
  }
  const std::optional<Cluster::Joined> joined = cluster_.OnHello(connection, hello);
  if (!joined.has_value()) return;
  Member& member = *joined->member;
  for (const std::string& id : joined->replaced) {
    Drop(id, "was restarted as a new process", v1::FAILURE_CAUSE_LEASE);
  }
  if (!member.worker()) OnAggregatorLost(member);
  cluster_.Welcome(member, connection);
  if (member.record.has_reservation()) {
    if (!joined->known) OnRankJoined(hello.reservation());
    SendIfEnded(member);
  }
  if (!member.worker()) {
    auto& stored = stored_runs_[hello.name()];
    stored.clear();
    std::set<std::string>& unknown = unknown_runs_[hello.name()];
    unknown.clear();
    // The generations of another cluster mean nothing here.
    if (StoresKnownRun(hello)) OnHigherGeneration(hello.generation());
    for (const v1::ShardState& shard : hello.shards()) {
      if (IsDeleted(shard.run(), shard.lineage())) {
        RequireDelete(hello.name(), deleted_.at(shard.run()));
        continue;
      }
      if (!shard.closed()) stored.emplace(shard.run(), shard.lineage());
      Run* const run = Visit(shard.run());
      if (run == nullptr) {
        // It may be adopted later, so its number is not given to another run.
        unknown.insert(shard.run());
        const uint32_t number = RunNumber(shard.run());
        if (number <= kMaxReportedNumber) cluster_.SkipNumbers(0, number);
      } else if (run->record().lineage() != shard.lineage()) {
        cluster_.CountRefusal(v1::REFUSAL_WRONG_LINEAGE);
      } else if (!run->live()) {
        run->SendCloseRun(member);
      } else if (run->IsLater(hello.name(), shard)) {
        run->FallBehind(shard.version());
      }
    }
    SendDeletes(member);
    for (auto& [number, run] : runs_) {
      if (run.active()) run.OnAggregatorJoined(member, joined->address_changed);
      if (run.behind()) run.RequestReport(member);
    }
  } else if (joined->known) {
    const bool claims = hello.has_place() && hello.place().generation() != 0;
    const bool agrees = claims && member.Holds(hello.place());
    if (claims && !agrees) {
      cluster_.CountRefusal(v1::REFUSAL_STALE_GENERATION);
      ReleaseLate(member, hello.place());
    }
    if (member.place) Visit(member.place->run())->OnWorkerRejoined(member, agrees);
  }
}

void Machine::OnClosed(const Member& member) {
  if (!member.worker()) {
    OnAggregatorLost(member);
  } else if (member.place.has_value()) {
    Visit(member.place->run())->OnWorkerClosed(member);
  }
}

void Machine::OnAggregatorLost(const Member& member) {
  if (adoption_.has_value()) adoption_->Lose(member.record.name());
  ordered_deletes_.erase(member.record.name());
  for (auto& [number, run] : runs_) run.OnAggregatorLost(member.record.name());
  VisitAll();
}

void Machine::Drop(const std::string& member_id, absl::string_view reason, v1::FailureCause cause) {
  const std::optional<Member> member = cluster_.Remove(member_id, reason);
  if (!member.has_value()) return;
  if (!member->worker()) return OnAggregatorLost(*member);
  if (cause == v1::FAILURE_CAUSE_LEASE) {
    cluster_.NoteLost(member->record.host());
    OnRankLost(*member);
  }
  if (member->place.has_value()) {
    const std::string text =
        absl::StrCat("worker ", member_id, " (", member->record.name(), ") ", reason);
    if (cause != kReleased) {
      cluster_.standings().Fail(Cluster::WorkerOf(*member), cause, text, cluster_.now());
    }
    Visit(member->place->run())->OnWorkerLost(*member->place, text, cause);
  }
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
  Run* const run = Visit(IdOf(trace.run));
  const absl::Status started =
      run == nullptr ? NoSuchRun(trace.run) : run->StartTrace(trace, number);
  if (!started.ok()) cluster_.out().Reply({.request = trace.request, .status = started});
}

void Machine::Settle() {
  for (bool form = false; SettleOnce(form);) form = true;
}

// Runs are visited in order of submission: earlier ones choose from the idle workers first and
// reserve the workers that they wait for. Returns whether a run has released workers meanwhile, so
// that others may now form groups.
bool Machine::SettleOnce(bool form) {
  const absl::Time now = cluster_.now();
  cluster_.UpdateIdle();
  for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= now; ++it) {
    unsettled_.insert(it->second);
  }
  form = form || cluster_.members().idle_changes() != seen_idle_;
  bool ended = false;
  for (const uint32_t number : unsettled_) {
    const Run& run = runs_.at(number);
    form = form || run.waits() || waiting_.contains(number);
    ended = ended || !run.live();
  }
  bool released = false;
  std::vector<std::string> idle;
  if (form) {
    unsettled_.insert(waiting_.begin(), waiting_.end());
    if (!unsettled_.empty()) idle = cluster_.IdleByHost();
  }
  for (const uint32_t number : unsettled_) {
    Run& run = runs_.at(number);
    run.Touch();
    if (run.active() && (!run.waits() || run.Form(idle))) {
      const size_t before = cluster_.members().idle().size();
      run.Advance();
      // A run that ends or is parked no longer needs the workers that it has reserved.
      released = released || !run.active() || cluster_.members().idle().size() > before;
    }
    run.SendFences();
    if (run.waits()) {
      waiting_.insert(number);
    } else {
      waiting_.erase(number);
    }
    absl::Time& deadline = deadline_of_[number];
    deadlines_.erase({deadline, number});
    deadline = run.NextDeadline();
    if (deadline != absl::InfiniteFuture()) deadlines_.emplace(deadline, number);
  }
  unsettled_.clear();
  seen_idle_ = cluster_.members().idle_changes();
  if (ended) EvictEndedRuns();
  return released;
}

absl::Time Machine::NextDeadline() const {
  return std::min({cluster_.members().NextExpiry(), cluster_.NextAvailable(),
                   deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first,
                   cluster_.programs().NextDeadline(),
                   adoption_.has_value() ? adoption_->until : absl::InfiniteFuture()});
}

// Looks the run up by the number in its id ("run-<number>..."); the rest of the id must be equal as
// well.
const Run* Machine::FindRun(absl::string_view run_id) const {
  auto it = runs_.find(RunNumber(run_id));
  return it == runs_.end() || it->second.id() != run_id ? nullptr : &it->second;
}

const Run* Machine::Resolve(absl::string_view run) const {
  if (run.empty() || RunNumber(run) != 0) return FindRun(run);
  const Run* newest = nullptr;
  for (auto it = runs_.rbegin(); it != runs_.rend(); ++it) {
    const Run& one = it->second;
    if (one.spec().name() != run) continue;
    if (one.live()) return &one;
    if (newest == nullptr) newest = &one;
  }
  return newest;
}

absl::Status Machine::NoSuchRun(absl::string_view run) {
  return absl::NotFoundError(absl::StrCat("no such run: ", run));
}

std::string Machine::IdOf(absl::string_view run) const {
  const Run* const found = Resolve(run);
  return found == nullptr ? "" : found->id();
}

Run* Machine::Visit(absl::string_view run_id) {
  if (FindRun(run_id) == nullptr) return nullptr;
  unsettled_.insert(RunNumber(run_id));
  return &runs_.at(RunNumber(run_id));
}

void Machine::VisitAll() {
  for (const auto& [number, run] : runs_) unsettled_.insert(number);
}

}  // namespace cadre
