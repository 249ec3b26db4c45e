// Submission and deletion of runs. Part of Machine.
#include <google/protobuf/util/message_differencer.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "coordinator/machine/machine.h"
#include "coordinator/store/keys.h"
#include "model/opaque.h"

namespace cadre {
namespace {

// Empty if the specs are equal.
std::string FirstDifference(const v1::RunSpec& run, const v1::RunSpec& submitted) {
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
// not, so the submission must not be answered with it: FailedPrecondition, as for another spec.
absl::Status CheckJoin(const Run& run, const v1::RunSpec& submitted) {
  const v1::RunState state = run.record().state();
  if (!run.live() && state != v1::RUN_STATE_DONE) {
    const std::string& reason = run.record().reason();
    return absl::FailedPreconditionError(
        absl::StrCat("run ", run.id(), " of the same name ",
                     state == v1::RUN_STATE_FAILED ? "has failed" : "was stopped before its end",
                     reason.empty() ? "" : ": ", reason,
                     "; submit a new run of this name, or use another name"));
  }
  const std::string difference = FirstDifference(run.spec(), submitted);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("run ", run.id(), " has the same name and another spec: ", difference));
}

}  // namespace

void Machine::OnSubmit(const SubmitRun& submit) {
  const Run* const existing = submit.join_existing ? runs_.Resolve(submit.spec.name()) : nullptr;
  if (existing != nullptr && (existing->live() || submit.join_ended)) {
    const absl::Status joined = CheckJoin(*existing, submit.spec);
    const std::string id = joined.ok() ? existing->id() : "";
    return cluster_.out().Reply({.request = submit.request,
                                 .status = joined,
                                 .run = id,
                                 .ended = joined.ok() && !existing->live()});
  }
  if (const absl::Status status = runs_.CheckLive(); !status.ok()) {
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
  Run& run = runs_.Add(record);
  cluster_.ReportRun(v1::EVENT_KIND_RUN_SUBMITTED, run.id(), "the run was submitted");
  run.Submit();
  cluster_.Count("runs_submitted");
  cluster_.out().Reply({.request = submit.request, .run = run.id()});
}

void Machine::ReplyFor(RequestId request, absl::string_view run,
                       absl::FunctionRef<absl::Status(Run&)> act) {
  Run* const found = runs_.Visit(IdOf(run));
  cluster_.out().Reply(
      {.request = request, .status = found == nullptr ? NoSuchRun(run) : act(*found)});
}

void Machine::OnRollBack(const RollBackRun& event) {
  ReplyFor(event.request, event.run,
           [&](Run& run) { return run.RollBack(event.version, event.leave_out); });
}

void Machine::ApplyRetention() {
  std::vector<EndedRun> ended;
  for (const auto& [number, run] : runs_.all()) {
    if (!run.live()) ended.push_back(run.Ended());
  }
  const RetentionChanges changes =
      FindRetentionChanges(options_.retention, std::move(ended), cluster_.now());
  Runs::Map& runs = runs_.all();
  for (const RetentionChanges::Run& removed : changes.remove) {
    Delete(runs.at(removed.number), removed.reason);
  }
  for (const RetentionChanges::Run& announced : changes.announce) {
    cluster_.Count("deletions_announced");
    runs.at(announced.number).stored().AnnounceRemoval(announced.removal, announced.reason);
    runs.at(announced.number).Touch();
  }
  for (const uint32_t number : changes.withdraw) {
    runs.at(number).stored().WithdrawRemoval();
    runs.at(number).Touch();
  }
  retention_at_ = changes.next;
}

void Machine::OnDelete(const DeleteRun& event) {
  const Run* const run = runs_.Resolve(event.run);
  absl::Status status = runs_.CheckOneOfName(event.run, /*only_live=*/false);
  if (!status.ok()) {
    // The name says nothing of which run is to be deleted.
  } else if (run != nullptr && run->live()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("run ", run->id(), " has not ended; stop it first: cadre stop ", run->id()));
  } else if (run != nullptr) {
    Delete(*run, "");
  } else if (!deleted_.Contains(event.run)) {
    status = NoSuchRun(event.run);
  }
  cluster_.out().Reply({.request = event.request, .status = status});
}

void Machine::Delete(const Run& run, absl::string_view reason) {
  v1::DeletedRunRecord deleted;
  deleted.set_run(run.id());
  deleted.set_lineage(run.record().lineage());
  std::set<std::string> names(run.record().shards().begin(), run.record().shards().end());
  names.insert(run.record().former_shards().begin(), run.record().former_shards().end());
  names.insert(run.record().leaving().begin(), run.record().leaving().end());
  deleted.mutable_aggregators()->Add(names.begin(), names.end());
  cluster_.out().EraseOne(RunKey(run.id()));
  cluster_.out().EraseOne(SpecKey(run.id()));
  cluster_.out().EraseBelow(CommitsPrefix(run.id()));
  cluster_.out().EraseBelow(HistoryPrefix(run.id()));
  cluster_.ReportRun(v1::EVENT_KIND_RUN_DELETED, run.id(),
                     absl::StrCat("the run was deleted", reason.empty() ? "" : ": ", reason));
  cluster_.Count("runs_deleted");
  runs_.Erase(run.number());
  // Others may fit the budget now.
  retention_at_ = absl::InfinitePast();
  if (!names.empty()) deleted_.Add(deleted);
}

}  // namespace cadre
