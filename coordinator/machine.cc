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
#include "coordinator/machine.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/status.h"
#include "coordinator/keys.h"
#include "model/opaque.h"

namespace cadre {
namespace {

// Limits of one page of the status; the second one leaves room for the last item.
constexpr size_t kDefaultPageSize = 1000;
constexpr size_t kMaxPageBytes = 512 << 10;

// Generations between those that aggregators know and those of adopted runs: the lost store may
// have given out more.
constexpr uint32_t kUnknownGenerations = 1'000'000;

// Maximum number of records of deleted runs. Beyond it the oldest are forgotten, first those whose
// removal all aggregators have confirmed: their files count as those of an unknown run that may
// have ended.
constexpr size_t kMaxDeletedRuns = 1024;

// Maximum number of orders to delete that one aggregator has not confirmed: few of the messages
// that may wait for a member (streams.cc).
constexpr size_t kMaxOrderedDeletes = 64;

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
              run.Stop(e.reason);
              return absl::OkStatus();
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
          [this](const Tick&) { ExpireMembers(); },
          [this](const Stalled& e) { cluster_.members().Extend(e.length); },
      },
      event);
  for (const std::string& id : cluster_.TakeClosed()) {
    if (const Member* const member = cluster_.members().Find(id)) OnClosed(*member);
  }
  FinishAdoption();
  Settle();
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
    cluster_.OnHeartbeat(member, message.heartbeat());
    if (!member.place.has_value()) return;
    Run& run = runs_.at(RunNumber(member.place->run()));
    if (run.OnHeartbeat(member, message.heartbeat())) unsettled_.insert(run.number());
  } else if (message.has_goodbye()) {
    // The id is copied, because Drop destroys the member that owns it.
    Drop(std::string(member.id()), absl::StrCat("left: ", message.goodbye().reason()), kReleased);
  } else if (member.worker()) {
    OnWorkerMessage(member, message);
  } else {
    OnAggregatorMessage(member, message);
  }
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
         std::any_of(runs_.begin(), runs_.end(),
                     [&](const auto& entry) { return entry.second.Lacks(hello); });
}

// Another process that is connected as the same rank of a program, or with another number of ranks.
const Member* Machine::OtherOfRank(const v1::Hello& hello) const {
  const v1::Reservation& reservation = hello.reservation();
  if (!hello.has_reservation()) return nullptr;
  for (const auto& [id, member] : cluster_.members().all()) {
    const v1::Reservation& other = member.record.reservation();
    const bool same_program = member.connected() && member.record.has_reservation() &&
                              other.program() == reservation.program() &&
                              member.record.incarnation() != hello.incarnation();
    if (same_program &&
        (other.rank() == reservation.rank() || other.ranks() != reservation.ranks())) {
      return &member;
    }
  }
  return nullptr;
}

// A worker that serves a run which has ended waits in vain.
void Machine::SendIfEnded(const Member& worker) const {
  const Run* ended = nullptr;
  for (const auto& [number, run] : runs_) {
    if (!run.IsReserved(worker.record.reservation())) continue;
    if (run.live()) return;
    ended = &run;
  }
  if (ended != nullptr) ended->SendRunEnded(worker);
}

void Machine::OnHello(ConnectionId connection, const v1::Hello& hello) {
  if (IsImpostor(hello)) {
    return cluster_.Refuse(
        connection, v1::REFUSAL_MALFORMED,
        absl::StrCat("another process named ", hello.name(),
                     " is connected and stores shards that ",
                     "this one lacks; use another name, or stop that process first"));
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
  if (member.record.has_reservation()) SendIfEnded(member);
  if (!member.worker()) {
    std::set<std::string>& unknown = unknown_runs_[hello.name()];
    unknown.clear();
    OnHigherGeneration(hello.generation());
    for (const v1::ShardState& shard : hello.shards()) {
      if (IsDeleted(shard.run(), shard.lineage())) {
        RequireDelete(hello.name(), deleted_.at(shard.run()));
        continue;
      }
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
  if (!member->worker()) {
    OnAggregatorLost(*member);
  } else if (member->place.has_value()) {
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

// ---- Runs

// Empty if the specs are equal.
std::string Machine::FirstDifference(const v1::RunSpec& run, const v1::RunSpec& submitted) {
  if (run.model().has_opaque() && submitted.model().has_opaque()) {
    const std::string parameters =
        ParametersDifference(ParameterIndex::FromOpaque(run.model().opaque()),
                             ParameterIndex::FromOpaque(submitted.model().opaque()));
    if (!parameters.empty()) return parameters;
  }
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(run, submitted)) return "";
  return report.substr(0, report.find('\n'));
}

void Machine::OnSubmit(const SubmitRun& submit) {
  if (const absl::Status status = CheckLiveRuns(); !status.ok()) {
    cluster_.out().Reply({.request = submit.request, .status = status});
    return;
  }
  if (submit.join_existing) {
    for (const auto& [number, run] : runs_) {
      if (!run.live() || run.spec().name() != submit.spec.name()) continue;
      const std::string difference = FirstDifference(run.spec(), submit.spec);
      return cluster_.out().Reply(
          {.request = submit.request,
           .status = difference.empty() ? absl::OkStatus()
                                        : absl::FailedPreconditionError(absl::StrCat(
                                              "run ", run.id(),
                                              " has the same name and another spec: ", difference)),
           .run = run.id()});
    }
  }
  const uint32_t number = cluster_.NewRun();
  v1::RunRecord record;
  record.set_run(RunId(number, submit.spec.name()));
  record.set_lineage(absl::StrFormat(
      "%s.%016x", record.run(),
      RandomBits(submit.lineage_seed, RandomStream::kIdentity, number, cluster_.meta().starts())));
  *record.mutable_spec() = submit.spec;
  record.set_state(v1::RUN_STATE_QUEUED);
  record.set_step(FirstStep(submit.spec));
  record.set_next_evaluation_epoch(EvaluationEpochs(submit.spec));
  Run& run =
      runs_.try_emplace(number, record, RunContext{cluster_, planner_, options_}).first->second;
  cluster_.ReportRun(v1::EVENT_KIND_RUN_SUBMITTED, run.id(), "the run was submitted");
  run.Submit();
  unsettled_.insert(number);
  cluster_.Count("runs_submitted");
  cluster_.out().Reply({.request = submit.request, .run = run.id()});
}

absl::Status Machine::CheckSpec(const Options& options, const v1::RunSpec& spec) {
  if (options.validate) CADRE_RETURN_IF_ERROR(options.validate(spec));
  if (!Averages(spec) && GroupsOf(spec) > 1) {
    return absl::InvalidArgumentError(
        "averaging.every_steps: 0 (never) requires a single group, but cluster.groups is larger");
  }
  // Programs plan their own ranks.
  if (spec.model().has_opaque()) return absl::OkStatus();
  const int ranks = RanksPerGroup(spec);
  return Annotate(options.plan(spec, ranks).status(),
                  absl::StrCat("no plan for groups of ", ranks));
}

absl::Status Machine::CheckLiveRuns() const {
  const auto live = std::count_if(runs_.begin(), runs_.end(),
                                  [](const auto& entry) { return entry.second.live(); });
  if (live < options_.max_live_runs) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(live, " runs are queued or running; stop some first"));
}

void Machine::ReplyFor(RequestId request, absl::string_view run_id,
                       absl::FunctionRef<absl::Status(Run&)> act) {
  Run* const run = Visit(run_id);
  cluster_.out().Reply({.request = request,
                        .status = run == nullptr
                                      ? absl::NotFoundError(absl::StrCat("no such run: ", run_id))
                                      : act(*run)});
}

void Machine::OnAdopt(const AdoptRuns& adopt) {
  const auto refuse = [&](absl::Status status) {
    cluster_.out().Reply({.request = adopt.request, .status = std::move(status)});
  };
  if (adoption_.has_value()) {
    return refuse(absl::FailedPreconditionError("another adoption is in progress"));
  }
  if (FindRun(adopt.run) != nullptr) {
    return refuse(absl::FailedPreconditionError(absl::StrCat("run ", adopt.run, " is known")));
  }
  Adoption adoption{.request = adopt.request,
                    .until = cluster_.now() + options_.lease,
                    .named = !adopt.run.empty()};
  for (const auto& [name, runs] : unknown_runs_) {
    const Member* const member = cluster_.members().Aggregator(name);
    if (member == nullptr || !member->connected()) continue;
    for (const std::string& run : runs) {
      if (FindRun(run) != nullptr || (adoption.named && run != adopt.run)) continue;
      v1::CoordinatorMessage message;
      message.mutable_report_run()->set_run(run);
      cluster_.SendTo(member->id(), message);
      adoption.awaited.insert({name, run});
    }
  }
  if (adoption.named && adoption.awaited.empty()) {
    return refuse(
        absl::NotFoundError(absl::StrCat("no connected aggregator stores a run ", adopt.run)));
  }
  adoption_ = std::move(adoption);
}

void Machine::FinishAdoption() {
  if (!adoption_.has_value()) return;
  if (!adoption_->awaited.empty() && cluster_.now() < adoption_->until) return;
  const Adoption adoption = std::move(*adoption_);
  adoption_.reset();
  Replied replied{.request = adoption.request, .status = absl::OkStatus()};
  for (const auto& [id, reports] : adoption.runs) {
    RebuiltRun rebuilt = RebuildRun(id, reports);
    // Its aggregators may have been away when it ended.
    if (rebuilt.problem.empty() && RunNumber(id) <= cluster_.meta().removed_run()) {
      rebuilt.ended = true;
      rebuilt.problem = absl::StrCat("it may have ended: the records of ended runs up to number ",
                                     cluster_.meta().removed_run(), " were removed");
    }
    if (rebuilt.ended && !adoption.named) continue;
    *replied.adopted.add_runs() = AdoptRun(id, rebuilt);
  }
  cluster_.out().Reply(std::move(replied));
}

v1::AdoptedRun Machine::AdoptRun(const std::string& id, const RebuiltRun& rebuilt) {
  v1::AdoptedRun adopted;
  adopted.set_run(id);
  adopted.set_problem(rebuilt.problem);
  const uint32_t number = RunNumber(id);
  if (const auto other = runs_.find(number); other != runs_.end() && adopted.problem().empty()) {
    adopted.set_problem(absl::StrCat("its number belongs to ", other->second.id()));
  }
  if (adopted.problem().empty()) {
    absl::Status status = CheckLiveRuns();
    status.Update(CheckSpec(options_, rebuilt.record.spec()));
    adopted.set_problem(std::string(status.message()));
  }
  if (!adopted.problem().empty()) return adopted;
  cluster_.SkipNumbers(rebuilt.generation + kUnknownGenerations, number);
  Run& run = runs_.try_emplace(number, rebuilt.record, RunContext{cluster_, planner_, options_})
                 .first->second;
  run.Adopt(rebuilt.newest, rebuilt.closing);
  unsettled_.insert(number);
  cluster_.Count("runs_adopted");
  adopted.set_version(run.record().version());
  adopted.set_step(run.record().step());
  return adopted;
}

// The store is older than the aggregators, or lost. Generations may have been assigned twice since
// the start, so the present ones end.
void Machine::OnHigherGeneration(uint32_t generation) {
  // OpenRun names the next generation for a group that is not formed.
  if (generation <= cluster_.meta().generation() + 1 || generation > kMaxReportedNumber) return;
  cluster_.SkipNumbers(generation + kUnknownGenerations, 0);
  for (auto& [number, run] : runs_) run.FenceAll("the coordinator's store is an older one");
  VisitAll();
}

void Machine::OnReportOf(Run& run, const Member& aggregator, const v1::RunReport& report) {
  const std::optional<RebuiltRun> rebuilt = run.OnReport(aggregator.record.name(), report);
  if (!rebuilt.has_value()) return;
  const uint32_t number = run.number();
  cluster_.SkipNumbers(rebuilt->generation + kUnknownGenerations, number);
  cluster_.out().EraseBelow(CommitsPrefix(run.id()));
  cluster_.out().EraseBelow(HistoryPrefix(run.id()));
  runs_.erase(number);
  runs_.try_emplace(number, rebuilt->record, RunContext{cluster_, planner_, options_})
      .first->second.Adopt(rebuilt->newest, rebuilt->closing);
  cluster_.Count("runs_brought_forward");
}

void Machine::OnTrace(const TraceGroup& trace) {
  // Unique across restarts: a worker may still run a trace of the previous process.
  const uint64_t number = (uint64_t{cluster_.meta().starts()} << 32) | ++last_trace_;
  Run* const run = Visit(trace.run);
  const absl::Status started = run == nullptr
                                   ? absl::NotFoundError(absl::StrCat("no such run: ", trace.run))
                                   : run->StartTrace(trace, number);
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

void Machine::EvictEndedRuns() {
  std::set<std::pair<int64_t, uint32_t>> ended;
  for (const auto& [number, run] : runs_) {
    if (!run.live()) ended.insert({run.record().ended_ms(), number});
  }
  while (std::ssize(ended) > options_.keep_closed_runs) {
    Delete(ended.extract(ended.begin()).value().second);
  }
}

void Machine::OnDelete(const DeleteRun& event) {
  const Run* const run = FindRun(event.run);
  absl::Status status;
  if (run != nullptr && run->live()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("run ", event.run, " has not ended; stop it first: cadre stop ", event.run));
  } else if (run != nullptr) {
    Delete(run->number());
  } else if (!deleted_.contains(event.run)) {
    status = absl::NotFoundError(absl::StrCat("no such run: ", event.run));
  }
  cluster_.out().Reply({.request = event.request, .status = status});
}

void Machine::Delete(uint32_t number) {
  const Run& run = runs_.at(number);
  v1::DeletedRunRecord deleted;
  deleted.set_run(run.id());
  deleted.set_lineage(run.record().lineage());
  std::set<std::string> names(run.record().shards().begin(), run.record().shards().end());
  names.insert(run.record().former_shards().begin(), run.record().former_shards().end());
  deleted.mutable_aggregators()->Add(names.begin(), names.end());
  cluster_.out().EraseOne(RunKey(run.id()));
  cluster_.out().EraseOne(SpecKey(run.id()));
  cluster_.out().EraseBelow(CommitsPrefix(run.id()));
  cluster_.out().EraseBelow(HistoryPrefix(run.id()));
  cluster_.ReportRun(v1::EVENT_KIND_RUN_DELETED, run.id(), "the run was deleted");
  cluster_.Count("runs_deleted");
  deadline_of_.erase(number);
  unsettled_.erase(number);
  runs_.erase(number);
  if (names.empty()) return;
  cluster_.out().Put(DeletedKey(deleted.run()), deleted);
  deleted_[deleted.run()] = std::move(deleted);
  while (deleted_.size() > kMaxDeletedRuns) ForgetDeleted();
  for (const std::string& name : names) {
    if (const Member* member = cluster_.members().Aggregator(name)) SendDeletes(*member);
  }
}

void Machine::ForgetDeleted() {
  const auto rank = [](const auto& entry) {
    return std::pair(!entry.second.aggregators().empty(), RunNumber(entry.first));
  };
  const auto oldest =
      std::min_element(deleted_.begin(), deleted_.end(),
                       [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  cluster_.NoteRemovedRun(RunNumber(oldest->first));
  for (auto& [name, runs] : ordered_deletes_) runs.erase(oldest->first);
  cluster_.out().EraseOne(DeletedKey(oldest->first));
  deleted_.erase(oldest);
}

void Machine::RequireDelete(const std::string& aggregator, v1::DeletedRunRecord& deleted) {
  auto& names = *deleted.mutable_aggregators();
  if (std::find(names.begin(), names.end(), aggregator) != names.end()) return;
  *names.Add() = aggregator;
  cluster_.out().Put(DeletedKey(deleted.run()), deleted);
}

void Machine::SendDeletes(const Member& aggregator) {
  const std::string& name = aggregator.record.name();
  std::set<std::string>& ordered = ordered_deletes_[name];
  for (const auto& [run, deleted] : deleted_) {
    if (ordered.size() >= kMaxOrderedDeletes) return;
    const auto& names = deleted.aggregators();
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (!ordered.insert(run).second) continue;
    v1::CoordinatorMessage message;
    message.mutable_delete_run()->set_run(run);
    message.mutable_delete_run()->set_lineage(deleted.lineage());
    cluster_.SendTo(aggregator.id(), message);
  }
}

void Machine::OnRunDeleted(const Member& aggregator, const v1::RunDeleted& message) {
  if (!IsDeleted(message.run(), message.lineage())) return;
  const std::string& name = aggregator.record.name();
  v1::DeletedRunRecord& deleted = deleted_.at(message.run());
  auto& names = *deleted.mutable_aggregators();
  const auto confirmed = std::remove(names.begin(), names.end(), name);
  if (confirmed == names.end()) return;
  names.erase(confirmed, names.end());
  cluster_.out().Put(DeletedKey(message.run()), deleted);
  ordered_deletes_[name].erase(message.run());
  SendDeletes(aggregator);
}

bool Machine::IsDeleted(absl::string_view run, absl::string_view lineage) const {
  const auto found = deleted_.find(run);
  return found != deleted_.end() && found->second.lineage() == lineage;
}

absl::Time Machine::NextDeadline() const {
  return std::min({cluster_.members().NextExpiry(), cluster_.NextAvailable(),
                   deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first,
                   adoption_.has_value() ? adoption_->until : absl::InfiniteFuture()});
}

// Looks the run up by the number in its id ("run-<number>..."); the rest of the id must be equal as
// well.
const Run* Machine::FindRun(absl::string_view run_id) const {
  auto it = runs_.find(RunNumber(run_id));
  return it == runs_.end() || it->second.id() != run_id ? nullptr : &it->second;
}

Run* Machine::Visit(absl::string_view run_id) {
  if (FindRun(run_id) == nullptr) return nullptr;
  unsettled_.insert(RunNumber(run_id));
  return &runs_.at(RunNumber(run_id));
}

void Machine::VisitAll() {
  for (const auto& [number, run] : runs_) unsettled_.insert(number);
}

// ---- Status. It is computed from the state for every request; only reports of the members are
// stored for it. All times are by the coordinator's clock. Values that a restart loses (progress,
// heartbeats, measured step times) are absent until the members have sent them again.

// The items of all pages are the groups, by run, and then the members, by age. A token names the
// first item of its page: "group <run number> <group>" or "member <id>", so that a page is correct
// even if items were added or removed since.
absl::StatusOr<v1::StatusReply> Machine::Status(absl::Time now,
                                                const v1::StatusRequest& request) const {
  if (!request.run().empty() && FindRun(request.run()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("no such run: ", request.run()));
  }
  const std::vector<std::string> token = absl::StrSplit(request.page_token(), ' ');
  const bool first = request.page_token().empty();
  uint32_t first_run = 0;
  uint32_t first_group = 0;
  const bool in_groups = token.size() == 3 && token[0] == "group" &&
                         absl::SimpleAtoi(token[1], &first_run) &&
                         absl::SimpleAtoi(token[2], &first_group);
  const bool in_members = token.size() == 2 && token[0] == "member";
  if (!first && !in_groups && !in_members) {
    return absl::InvalidArgumentError("page_token: no reply contained this token");
  }
  v1::StatusReply reply;
  const size_t max_items = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  size_t items = 0;
  size_t bytes = 0;
  const auto full = [&] { return items == max_items || bytes > kMaxPageBytes; };
  const auto add = [&](const google::protobuf::Message& item) {
    ++items;
    bytes += item.ByteSizeLong();
  };
  if (first) cluster_.FillStatus(now, reply);
  for (auto it = runs_.lower_bound(first_run); it != runs_.end() && !in_members; ++it) {
    const Run& run = it->second;
    if (!request.run().empty() && run.id() != request.run()) continue;
    if (first) *reply.add_runs() = run.Status(now);
  }
  for (auto it = runs_.lower_bound(first_run); it != runs_.end() && !in_members; ++it) {
    const Run& run = it->second;
    if (!run.live() || (!request.run().empty() && run.id() != request.run())) continue;
    for (const Slot& slot : run.slots()) {
      if (it->first == first_run && slot.group() < first_group) continue;
      if (full()) {
        reply.set_next_page_token(absl::StrCat("group ", it->first, " ", slot.group()));
        return reply;
      }
      v1::GroupStatus& group = *reply.add_groups();
      group = run.StatusOf(slot, request.details());
      add(group);
    }
  }
  const Membership::Map& members = cluster_.members().all();
  for (auto it = in_members ? members.lower_bound(token[1]) : members.begin(); it != members.end();
       ++it) {
    if (full()) {
      reply.set_next_page_token(absl::StrCat("member ", it->first));
      return reply;
    }
    const Member& member = it->second;
    if (member.worker()) {
      v1::MemberStatus& worker = *reply.add_workers();
      worker = cluster_.StatusOf(member, now);
      add(worker);
    } else {
      v1::AggregatorStatus& aggregator = *reply.add_aggregators();
      *aggregator.mutable_member() = cluster_.StatusOf(member, now);
      const auto counter = [&](const char* name) -> uint64_t {
        const auto& counters = aggregator.member().counters();
        const auto found = counters.find(name);
        return found == counters.end() ? 0 : found->second;
      };
      aggregator.set_free_bytes(counter("disk_free_bytes"));
      aggregator.set_reserved_bytes(counter("disk_reserved_bytes"));
      for (const auto& [number, run] : runs_) run.FillShards(member, aggregator);
      add(aggregator);
    }
  }
  return reply;
}

v1::StatusReply Machine::Status(absl::Time now, absl::string_view run_id) const {
  v1::StatusRequest request;
  request.set_run(std::string(run_id));
  request.set_details(true);
  v1::StatusReply all;
  do {
    const absl::StatusOr<v1::StatusReply> page = Status(now, request);
    if (!page.ok()) return {};
    all.MergeFrom(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

v1::ListReply Machine::List(absl::Time now) const {
  v1::ListReply reply;
  for (const auto& [number, run] : runs_) *reply.add_runs() = run.Status(now);
  return reply;
}

MemberCounts Machine::CountMembers() const {
  MemberCounts counts;
  for (const auto& [id, member] : cluster_.members().all()) {
    if (!member.worker()) {
      ++(member.connected() ? counts.aggregators : counts.aggregators_away);
    } else if (!member.connected()) {
      ++counts.workers_away;
    } else if (member.place.has_value()) {
      ++counts.busy;
    } else {
      ++(member.excluded ? counts.excluded : counts.idle);
    }
  }
  return counts;
}

int64_t Machine::RoundOpenedMs(const std::string& run_id) const {
  const Run* const run = FindRun(run_id);
  const bool open = run != nullptr && run->record().state() == v1::RUN_STATE_RUNNING;
  return open ? run->record().round_opened_ms() : 0;
}

absl::StatusOr<v1::HistoryReply> Machine::History(const v1::HistoryRequest& request) const {
  const Run* const run = FindRun(request.run());
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("no such run: ", request.run()));
  return run->history().Read(request);
}

std::map<std::string, uint64_t> Machine::Revisions(absl::string_view run_id) const {
  std::map<std::string, uint64_t> revisions;
  for (const auto& [number, run] : runs_) {
    if (run_id.empty() || run.id() == run_id) revisions[run.id()] = run.revision();
  }
  return revisions;
}

v1::WatchUpdate Machine::Update(absl::string_view run_id, absl::Time now) const {
  const Run& run = *FindRun(run_id);
  v1::WatchUpdate update;
  update.set_time_ms(absl::ToUnixMillis(now));
  *update.mutable_run() = run.Status(now);
  if (!run.live()) return update;
  for (const Slot& slot : run.slots()) {
    *update.add_groups() = run.StatusOf(slot, /*details=*/false);
  }
  return update;
}

}  // namespace cadre
