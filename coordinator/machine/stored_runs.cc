#include "coordinator/machine/stored_runs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// More than what several starts from a backup leave out. A higher generation is taken for an error:
// it would use up the numbers.
constexpr uint32_t kMaxGenerationJump = 100'000'000;

}  // namespace

bool StoredRuns::Refuse(ConnectionId connection, const v1::Hello& hello) {
  if (IsImpostor(hello)) {
    cluster_.Refuse(connection, v1::REFUSAL_MALFORMED,
                    absl::StrCat("another process named ", hello.name(),
                                 " is connected and stores shards that ",
                                 "this one lacks; use another name, or stop that process first"));
    return true;
  }
  const Run* const run = RunOfOtherLineage(hello);
  if (run == nullptr) return false;
  cluster_.Refuse(
      connection, v1::REFUSAL_WRONG_LINEAGE,
      absl::StrCat("aggregator ", hello.name(), " stores another run ", run->id(),
                   ", of another cluster or of a store that was lost; use another --data-dir, or "
                   "move the folder ",
                   run->id(), " out of it"));
  return true;
}

// The name of an aggregator belongs to the process that stores its shards, as long as that process
// is connected.
bool StoredRuns::IsImpostor(const v1::Hello& hello) const {
  if (hello.role() != v1::ROLE_AGGREGATOR) return false;
  const Member* const member = cluster_.members().Aggregator(hello.name());
  const Runs::Map& runs = runs_.all();
  return member != nullptr && member->connected() &&
         member->record.incarnation() != hello.incarnation() &&
         (LacksStored(hello) || std::any_of(runs.begin(), runs.end(), [&](const auto& entry) {
            return entry.second.shards().Lacks(hello);
          }));
}

// An ended run may have been removed by the limit of the aggregator.
bool StoredRuns::LacksStored(const v1::Hello& hello) const {
  const auto stored = stored_.find(hello.name());
  if (stored == stored_.end()) return false;
  return std::any_of(stored->second.begin(), stored->second.end(), [&](const auto& entry) {
    const auto& [id, lineage] = entry;
    const Run* const run = runs_.Find(id);
    return (run == nullptr || run->live()) && !deleted_.Contains(id, lineage) &&
           std::none_of(hello.shards().begin(), hello.shards().end(),
                        [&](const v1::ShardState& shard) { return shard.lineage() == lineage; });
  });
}

// The OpenRun of the live run would set the other lineage aside, and the limit of ended runs could
// remove it.
const Run* StoredRuns::RunOfOtherLineage(const v1::Hello& hello) const {
  for (const v1::ShardState& shard : hello.shards()) {
    const Run* const run = runs_.Find(shard.run());
    if (shard.closed()) continue;
    const bool other = run != nullptr && run->live() && run->record().lineage() != shard.lineage();
    if (other && !deleted_.Contains(shard.run(), shard.lineage())) return run;
  }
  return nullptr;
}

bool StoredRuns::StoresKnownRun(const v1::Hello& hello) const {
  return std::any_of(hello.shards().begin(), hello.shards().end(),
                     [this](const v1::ShardState& shard) {
                       const Run* const run = runs_.Find(shard.run());
                       return (run != nullptr && run->record().lineage() == shard.lineage()) ||
                              deleted_.Contains(shard.run(), shard.lineage());
                     });
}

void StoredRuns::OnJoined(const Member& aggregator, const v1::Hello& hello) {
  auto& stored = stored_[hello.name()];
  stored.clear();
  std::set<std::string>& unknown = unknown_[hello.name()];
  unknown.clear();
  // The generations of another cluster mean nothing here.
  if (StoresKnownRun(hello)) OnHigherGeneration(hello.generation());
  for (const v1::ShardState& shard : hello.shards()) {
    if (deleted_.Contains(shard.run(), shard.lineage())) {
      deleted_.Require(hello.name(), shard.run());
      continue;
    }
    if (!shard.closed()) stored.emplace(shard.run(), shard.lineage());
    Run* const run = runs_.Visit(shard.run());
    if (run == nullptr) {
      // It may be adopted later, so its number is not given to another run.
      unknown.insert(shard.run());
      const uint32_t number = RunNumber(shard.run());
      if (number <= kMaxReportedNumber) cluster_.SkipRuns(number);
    } else if (run->record().lineage() != shard.lineage()) {
      cluster_.CountRefusal(v1::REFUSAL_WRONG_LINEAGE);
    } else if (!run->live()) {
      cluster_.SendTo(aggregator.id(), run->CloseRun());
    } else if (run->IsLater(hello.name(), shard)) {
      run->FallBehind(shard.version());
    }
  }
  deleted_.SendOrders(aggregator);
}

// The store is older than the aggregators, or lost. Generations may have been assigned twice since
// the start, so the present ones end.
void StoredRuns::OnHigherGeneration(uint32_t generation) {
  const uint32_t highest = cluster_.meta().generation();
  // OpenRun names the next generation for a group that is not formed.
  if (generation <= highest + 1 || generation > kMaxReportedNumber) return;
  if (generation - highest > kMaxGenerationJump) return cluster_.Count("implausible_generations");
  cluster_.SkipGenerations(generation);
  for (auto& [number, run] : runs_.all())
    run.groups().FenceAll("the coordinator's store is an older one");
  runs_.VisitAll();
}

// The report may also be one about a run whose record is older than the values of its aggregators.
void StoredRuns::OnReport(const Member& aggregator, const v1::RunReport& report) {
  if (adoption_.has_value()) adoption_->Add(aggregator.record.name(), report);
  Run* const run = runs_.Visit(report.run());
  if (run == nullptr) return;
  const std::optional<RebuiltRun> rebuilt = run->OnReport(aggregator.record.name(), report);
  if (!rebuilt.has_value()) return;
  const uint32_t number = run->number();
  cluster_.SkipGenerations(rebuilt->generation);
  cluster_.SkipRuns(number);
  cluster_.out().EraseBelow(CommitsPrefix(run->id()));
  cluster_.out().EraseBelow(HistoryPrefix(run->id()));
  runs_.Erase(number);
  runs_.Add(rebuilt->record).Adopt(rebuilt->newest, rebuilt->closing);
  cluster_.Count("runs_brought_forward");
}

bool StoredRuns::OnRunDeleted(const Member& aggregator, const v1::RunDeleted& message) {
  stored_[aggregator.record.name()].erase({message.run(), message.lineage()});
  if (deleted_.Contains(message.run(), message.lineage())) {
    deleted_.Confirm(aggregator, message.run());
    return true;
  }
  const Run* const run = runs_.Find(message.run());
  return run == nullptr || run->record().lineage() != message.lineage();
}

void StoredRuns::Adopt(const AdoptRuns& adopt) {
  const auto refuse = [&](absl::Status status) {
    cluster_.out().Reply({.request = adopt.request, .status = std::move(status)});
  };
  if (adoption_.has_value()) {
    return refuse(absl::FailedPreconditionError("another adoption is in progress"));
  }
  if (runs_.Find(adopt.run) != nullptr) {
    return refuse(absl::FailedPreconditionError(absl::StrCat("run ", adopt.run, " is known")));
  }
  Adoption adoption{.request = adopt.request,
                    .until = cluster_.now() + options_.lease,
                    .named = !adopt.run.empty()};
  for (const auto& [name, runs] : unknown_) {
    const Member* const member = cluster_.members().Aggregator(name);
    if (member == nullptr || !member->connected()) continue;
    for (const std::string& run : runs) {
      if (runs_.Find(run) != nullptr || (adoption.named && run != adopt.run)) continue;
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

void StoredRuns::FinishAdoption() {
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

v1::AdoptedRun StoredRuns::AdoptRun(const std::string& id, const RebuiltRun& rebuilt) {
  v1::AdoptedRun adopted;
  adopted.set_run(id);
  adopted.set_problem(rebuilt.problem);
  const uint32_t number = RunNumber(id);
  const Runs::Map& runs = runs_.all();
  if (const auto other = runs.find(number); other != runs.end() && adopted.problem().empty()) {
    adopted.set_problem(absl::StrCat("its number belongs to ", other->second.id()));
  }
  if (adopted.problem().empty()) {
    absl::Status status = runs_.CheckLive();
    status.Update(CheckSpec(options_, rebuilt.record.spec()));
    adopted.set_problem(std::string(status.message()));
  }
  if (!adopted.problem().empty()) return adopted;
  cluster_.SkipGenerations(rebuilt.generation);
  cluster_.SkipRuns(number);
  Run& run = runs_.Add(rebuilt.record);
  run.Adopt(rebuilt.newest, rebuilt.closing);
  cluster_.Count("runs_adopted");
  adopted.set_version(run.record().version());
  adopted.set_step(run.record().step());
  return adopted;
}

}  // namespace cadre
