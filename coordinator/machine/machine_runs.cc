// Submission, adoption and deletion of runs. Part of Machine.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"
#include "coordinator/machine/machine.h"
#include "coordinator/store/keys.h"
#include "model/opaque.h"

namespace cadre {
namespace {

// Generations between those that aggregators know and those of adopted runs: the lost store may
// have given out more.
constexpr uint32_t kUnknownGenerations = 1'000'000;

// More than what several starts from a backup leave out. A higher generation is taken for an error:
// it would use up the numbers.
constexpr uint32_t kMaxGenerationJump = 100'000'000;

// Maximum number of records of deleted runs. Beyond it the oldest are forgotten, first those whose
// removal all aggregators have confirmed: their files count as those of an unknown run that may
// have ended.
constexpr size_t kMaxDeletedRuns = 1024;

// Maximum number of orders to delete that one aggregator has not confirmed: few of the messages
// that may wait for a member (streams.cc).
constexpr size_t kMaxOrderedDeletes = 64;

}  // namespace

// Empty if the specs are equal.
std::string Machine::FirstDifference(const v1::RunSpec& run, const v1::RunSpec& submitted) {
  if (run.model().has_opaque() && submitted.model().has_opaque()) {
    const std::string parameters =
        ParametersDifference(run.model().opaque(), submitted.model().opaque());
    if (!parameters.empty()) return parameters;
  }
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  if (differencer.Compare(run, submitted)) return "";
  return report.substr(0, report.find('\n'));
}

// A run that has reached its end is the result of the submission; one that failed or was stopped is
// not, so the submission must not be answered with it.
absl::Status Machine::CheckJoin(const Run& run, const v1::RunSpec& submitted) {
  const v1::RunState state = run.record().state();
  if (!run.live() && state != v1::RUN_STATE_DONE) {
    const std::string& reason = run.record().reason();
    return absl::FailedPreconditionError(absl::StrCat(
        "run ", run.id(), " of the same name ",
        state == v1::RUN_STATE_FAILED ? "has failed" : "was stopped before its end",
        reason.empty() ? "" : ": ", reason,
        "; submit a new run of this name, or use another name"));
  }
  const std::string difference = FirstDifference(run.spec(), submitted);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("run ", run.id(), " has the same name and another spec: ", difference));
}

void Machine::OnSubmit(const SubmitRun& submit) {
  const Run* const existing = submit.join_existing ? Resolve(submit.spec.name()) : nullptr;
  if (existing != nullptr && (existing->live() || submit.join_ended)) {
    const absl::Status joined = CheckJoin(*existing, submit.spec);
    const std::string id = joined.ok() ? existing->id() : "";
    return cluster_.out().Reply({.request = submit.request,
                                 .status = joined,
                                 .run = id,
                                 .ended = joined.ok() && !existing->live()});
  }
  if (const absl::Status status = CheckLiveRuns(); !status.ok()) {
    cluster_.out().Reply({.request = submit.request, .status = status});
    return;
  }
  const uint32_t number = cluster_.NewRun();
  v1::RunRecord record;
  record.set_run(RunId(number, submit.spec.name()));
  // Begins with the id and a dot: readers rely on it (server/client/version_reader.cc).
  record.set_lineage(absl::StrFormat(
      "%s.%016x", record.run(),
      RandomBits(submit.lineage_seed, RandomStream::kIdentity, number, cluster_.meta().starts())));
  *record.mutable_spec() = submit.spec;
  record.set_state(v1::RUN_STATE_QUEUED);
  record.set_step(FirstStep(submit.spec));
  record.set_next_evaluation(NextEvaluation(record, record.step()));
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

void Machine::ReplyFor(RequestId request, absl::string_view run,
                       absl::FunctionRef<absl::Status(Run&)> act) {
  Run* const found = Visit(IdOf(run));
  cluster_.out().Reply(
      {.request = request, .status = found == nullptr ? NoSuchRun(run) : act(*found)});
}

absl::Status Machine::CheckOneOfName(absl::string_view run, bool only_live) const {
  std::vector<std::string> ids;
  for (const auto& [number, one] : runs_) {
    const bool named = RunNumber(run) == 0 && one.spec().name() == run;
    if (named && (one.live() || !only_live)) ids.push_back(one.id());
  }
  if (ids.size() <= 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(ids.size(), " runs are named '", run,
                                                    "': ", absl::StrJoin(ids, ", "),
                                                    "; give the id of one"));
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

// The OpenRun of the live run would set the other lineage aside, and the limit of ended runs could
// remove it.
const Run* Machine::RunOfOtherLineage(const v1::Hello& hello) const {
  for (const v1::ShardState& shard : hello.shards()) {
    const Run* const run = FindRun(shard.run());
    if (shard.closed()) continue;
    const bool other = run != nullptr && run->live() && run->record().lineage() != shard.lineage();
    if (other && !IsDeleted(shard.run(), shard.lineage())) return run;
  }
  return nullptr;
}

bool Machine::StoresKnownRun(const v1::Hello& hello) const {
  return std::any_of(hello.shards().begin(), hello.shards().end(),
                     [this](const v1::ShardState& shard) {
                       const Run* const run = FindRun(shard.run());
                       return (run != nullptr && run->record().lineage() == shard.lineage()) ||
                              IsDeleted(shard.run(), shard.lineage());
                     });
}

// The store is older than the aggregators, or lost. Generations may have been assigned twice since
// the start, so the present ones end.
void Machine::OnHigherGeneration(uint32_t generation) {
  const uint32_t highest = cluster_.meta().generation();
  // OpenRun names the next generation for a group that is not formed.
  if (generation <= highest + 1 || generation > kMaxReportedNumber) return;
  if (generation - highest > kMaxGenerationJump) return cluster_.Count("implausible_generations");
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
  const Run* const run = Resolve(event.run);
  absl::Status status = CheckOneOfName(event.run, /*only_live=*/false);
  if (!status.ok()) {
    // The name says nothing of which run is to be deleted.
  } else if (run != nullptr && run->live()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("run ", run->id(), " has not ended; stop it first: cadre stop ", run->id()));
  } else if (run != nullptr) {
    Delete(run->number());
  } else if (!deleted_.contains(event.run)) {
    status = NoSuchRun(event.run);
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
  stored_runs_[name].erase({message.run(), message.lineage()});
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

}  // namespace cadre
