#include "worker/train/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"
#include "model/data_position.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"

namespace cadre {
namespace {

bool Same(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

// Whether `from` is `directory`, a checkpoint in it, or the weights file of one.
bool LiesIn(const std::string& from, const std::string& directory) {
  if (from.empty()) return false;
  std::filesystem::path path = std::filesystem::path(from).lexically_normal();
  for (int up = 0; up < 3; ++up, path = path.parent_path()) {
    if (Same(path, directory)) return true;
  }
  return false;
}

// FailedPrecondition if the directory holds checkpoints of another run from which this run does not
// continue.
absl::Status CheckOwner(const v1::Checkpoint& checkpoint, const std::string& lineage,
                        const RootedFiles& files) {
  const std::string& directory = checkpoint.directory();
  const auto owned = CheckpointsByOwner(directory, lineage, files);
  if (absl::IsPermissionDenied(owned.status())) {
    return Annotate(owned.status(), "checkpoint.directory");
  }
  // A missing directory is created later; other problems are reported when it is written to.
  if (!owned.ok() || owned->others.empty()) return absl::OkStatus();
  const CheckpointEntry& newest = owned->others.back();
  if (LiesIn(checkpoint.from(), directory) && newest.step <= int64_t{checkpoint.from_step()}) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      directory, ": holds ", owned->others.size(), " checkpoint(s) of another run, the newest is ",
      newest.path, "; specify another checkpoint.directory, or start from that checkpoint"));
}

// Reports the states of the averaging that only one of the checkpoint and the run has.
void ReportDifferences(const LoadedCheckpoint& loaded, const std::vector<AveragingState>& of_run,
                       const std::string& run, TrainerProgress& progress) {
  const auto report = [&](const std::string& text) {
    LOG(WARNING) << text;
    progress.AddWarning(run, text);
  };
  const std::vector<std::string> stored =
      AveragingStateNames(loaded.manifest.value_or(v1::CheckpointManifest()));
  const auto is_of_run = [&](const std::string& name) {
    return std::any_of(of_run.begin(), of_run.end(),
                       [&](const AveragingState& state) { return state.name == name; });
  };
  for (const AveragingState& state : of_run) {
    if (std::find(stored.begin(), stored.end(), state.name) != stored.end()) continue;
    report(absl::StrCat(loaded.path, ": has no ", state.name, "; the run begins with zeros"));
  }
  for (const std::string& name : stored) {
    if (is_of_run(name)) continue;
    report(absl::StrCat(loaded.path, ": the run does not use its ", name));
  }
}

// The counts of all elements, in order, as OwnedSlices::SetUpdates takes them.
std::vector<UpdateCount> UpdatesIn(const v1::OptimizerManifest& manifest, int64_t size) {
  std::vector<UpdateCount> counts;
  for (const v1::FewerUpdates& each : manifest.fewer()) {
    counts.push_back({{static_cast<int64_t>(each.begin()), static_cast<int64_t>(each.end())},
                      static_cast<int64_t>(each.updates())});
  }
  std::sort(counts.begin(), counts.end(), [](const UpdateCount& a, const UpdateCount& b) {
    return a.positions.begin < b.positions.begin;
  });
  std::vector<UpdateCount> all;
  int64_t next = 0;
  const auto add_others_until = [&](int64_t begin) {
    if (next < begin) all.push_back({{next, begin}, static_cast<int64_t>(manifest.updates())});
  };
  for (const UpdateCount& each : counts) {
    add_others_until(each.positions.begin);
    all.push_back(each);
    next = each.positions.end;
  }
  add_others_until(size);
  return all;
}

// InvalidArgument, naming the field, unless the positions are disjoint and of the model.
absl::Status CheckUpdates(const v1::OptimizerManifest& manifest, int64_t size) {
  // More than any run makes, and far from an overflow.
  constexpr uint64_t kMaxUpdates = uint64_t{1} << 53;
  if (manifest.updates() > kMaxUpdates) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.updates: is ", manifest.updates(), ", more than ", kMaxUpdates));
  }
  int64_t next = 0;
  for (const UpdateCount& each : UpdatesIn(manifest, size)) {
    const bool ordered = each.positions.begin >= next && !each.positions.empty() &&
                         each.positions.end <= size && each.updates >= 0;
    if (!ordered || each.updates > static_cast<int64_t>(manifest.updates())) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.fewer: positions ", each.positions.begin, " to ",
                       each.positions.end, " with ", each.updates, " updates, in a model of ", size,
                       " elements with ", manifest.updates(), " updates"));
    }
    next = each.positions.end;
  }
  return absl::OkStatus();
}

// A collective: the updates of all ranks' slices.
absl::StatusOr<v1::OptimizerManifest> GroupUpdates(const OwnedSlices& slices, Communicator& group) {
  v1::OptimizerManifest mine;
  mine.set_updates(slices.updates());
  for (const UpdateCount& each : slices.UpdateCounts()) {
    v1::FewerUpdates& counted = *mine.add_fewer();
    counted.set_begin(each.positions.begin);
    counted.set_end(each.positions.end);
    counted.set_updates(each.updates);
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         GatherTexts(mine.SerializeAsString(), group));
  v1::OptimizerManifest all;
  for (const std::string& text : texts) {
    v1::OptimizerManifest of_rank;
    if (!of_rank.ParseFromString(text)) return absl::InternalError("malformed counts of updates");
    all.set_updates(std::max(all.updates(), of_rank.updates()));
    all.mutable_fewer()->MergeFrom(of_rank.fewer());
  }
  const auto has_all = [&](const v1::FewerUpdates& each) {
    return each.updates() == all.updates();
  };
  all.mutable_fewer()->erase(
      std::remove_if(all.mutable_fewer()->begin(), all.mutable_fewer()->end(), has_all),
      all.mutable_fewer()->end());
  return all;
}

}  // namespace

absl::Status RunCheckpoints::Begin(const v1::Start& start,
                                   const std::vector<AveragingState>& averaging) {
  const v1::RunSpec& spec = assignment_.spec();
  if (spec.checkpoint().from().empty()) return absl::OkStatus();
  // A gather of the current weights may still be running.
  CADRE_RETURN_IF_ERROR(replica_.AwaitOperations());
  // Values that the file does not contain remain as they are in the replica.
  CADRE_RETURN_IF_ERROR(replica_.FetchOwned(/*states=*/true));
  CADRE_ASSIGN_OR_RETURN(
      const LoadedCheckpoint loaded,
      LoadCheckpoint(spec.checkpoint().from(), replica_.index(), spec.optimizer(),
                     Values(averaging), replica_.comms().All(), files_));
  CADRE_RETURN_IF_ERROR(replica_.StoreOwned(/*states=*/true));
  if (loaded.manifest) {
    CADRE_RETURN_IF_ERROR(CheckManifest(loaded.path, *loaded.manifest, start.step()));
    const v1::OptimizerManifest& optimizer = loaded.manifest->optimizer();
    CADRE_RETURN_IF_ERROR(Annotate(CheckUpdates(optimizer, replica_.index().size()), loaded.path));
    replica_.slices().SetUpdates(UpdatesIn(optimizer, replica_.index().size()));
  }
  if (assignment_.shards_size() > 0) {
    CADRE_ASSIGN_OR_RETURN(const uint64_t digest, replica_.GroupDigest());
    if (digest != start.digest()) {
      return absl::DataLossError(
          absl::StrCat(loaded.path,
                       ": its weights differ from those that the aggregators have read; is it the "
                       "same folder on every host?"));
    }
  }
  LOG_IF(INFO, lead()) << "starting from " << loaded.path
                       << (loaded.manifest ? "" : ", weights only");
  if (lead() && assignment_.place().group() == 0) {
    ReportDifferences(loaded, averaging, assignment_.place().run(), progress_);
  }
  return absl::OkStatus();
}

absl::Status RunCheckpoints::CheckManifest(const std::string& path,
                                           const v1::CheckpointManifest& manifest,
                                           uint32_t step) const {
  if (manifest.step() != step) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": was saved at step ", manifest.step(),
                                                   ", but checkpoint.from_step is ", step));
  }
  const uint64_t position = InitialDivision(assignment_.spec()).position();
  LOG_IF(WARNING, lead() && manifest.cursor().position() != position)
      << path << ": " << manifest.cursor().position()
      << " samples were trained on, but the run continues at " << position
      << " (checkpoint.from_position): until the next epoch some samples are repeated or skipped";
  return absl::OkStatus();
}

absl::Status RunCheckpoints::CheckDirectory() {
  if (!writes()) return absl::OkStatus();
  absl::Status mine;
  if (lead()) mine = CheckOwner(assignment_.spec().checkpoint(), assignment_.lineage(), files_);
  return Agree(mine, replica_.comms().All());
}

bool RunCheckpoints::Due(uint32_t step, bool last) const {
  if (!writes() || step == saved_) return false;
  const v1::Checkpoint& checkpoint = assignment_.spec().checkpoint();
  return last || (checkpoint.every_steps() > 0 &&
                  step / checkpoint.every_steps() > saved_ / checkpoint.every_steps());
}

void RunCheckpoints::Report(uint32_t step, absl::string_view error, absl::string_view warning) {
  if (!lead()) return;
  LOG_IF(ERROR, !error.empty()) << "no checkpoint of step " << step << ": " << error;
  LOG_IF(WARNING, !warning.empty()) << "checkpoint of step " << step << ": " << warning;
  v1::Checkpointed report;
  *report.mutable_place() = assignment_.place();
  report.set_step(step);
  report.set_error(std::string(error));
  report.set_warning(std::string(warning));
  control_.Send(report);
}

absl::StatusOr<bool> RunCheckpoints::IsSaved(uint32_t step) {
  uint64_t saved[] = {0};
  if (lead()) {
    // A directory that cannot be read has none: writing it reports why.
    const auto owned = CheckpointsByOwner(assignment_.spec().checkpoint().directory(),
                                          assignment_.lineage(), files_);
    saved[0] = owned.ok() && std::any_of(owned->mine.begin(), owned->mine.end(),
                                         [step](const CheckpointEntry& entry) {
                                           return entry.step == int64_t{step};
                                         })
                   ? 1
                   : 0;
  }
  CADRE_RETURN_IF_ERROR(replica_.comms().All().AllReduceSum(std::span<uint64_t>(saved)));
  if (saved[0] == 0) return false;
  Report(step, /*error=*/"", /*warning=*/"");
  return true;
}

absl::Status RunCheckpoints::Save(const Facts& facts, std::vector<AveragingState> averaging,
                                  std::string warning) {
  const v1::RunSpec& spec = assignment_.spec();
  v1::CheckpointManifest manifest;
  *manifest.mutable_spec() = spec;
  manifest.set_step(facts.step);
  manifest.set_version(facts.version);
  manifest.mutable_cursor()->set_position(facts.position);
  manifest.mutable_cursor()->set_samples_per_epoch(facts.train_samples);
  manifest.mutable_cursor()->set_epoch(facts.position / facts.train_samples);
  manifest.set_seed(spec.seed());
  manifest.set_run(assignment_.lineage());
  Communicator& group = replica_.comms().All();
  CADRE_ASSIGN_OR_RETURN(*manifest.mutable_optimizer(), GroupUpdates(replica_.slices(), group));
  CADRE_RETURN_IF_ERROR(replica_.FetchOwned(/*states=*/true));
  const int64_t keep = spec.checkpoint().keep();
  std::string old_stay;
  const absl::Status saved = SaveCheckpoint(
      {.directory = spec.checkpoint().directory(), .keep = keep == 0 ? 2 : keep, .files = files_},
      replica_.index(), std::move(manifest), Values(std::move(averaging)), group, &old_stay);
  saved_ = facts.step;
  if (saved.ok()) {
    counters_.Add("checkpoints_saved");
    if (!warning.empty() && !old_stay.empty()) warning += "; ";
    Report(facts.step, /*error=*/"", warning + old_stay);
    return absl::OkStatus();
  }
  // Training continues if the disk is full, but not if the group has failed, which the barrier
  // detects.
  CADRE_RETURN_IF_ERROR(group.Barrier());
  counters_.Add("checkpoints_failed");
  Report(facts.step, saved.message(), /*warning=*/"");
  return absl::OkStatus();
}

CheckpointValues RunCheckpoints::Values(std::vector<AveragingState> averaging) {
  CheckpointValues values{.weights = {replica_.owned().begin(), replica_.owned().end()},
                          .averaging = std::move(averaging),
                          .progress = &progress_};
  for (int i = 0; i < replica_.slices().states(); ++i) {
    values.states.push_back(replica_.slices().State(i));
  }
  return values;
}

}  // namespace cadre
