#include "worker/train/run_checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/data_position.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "worker/train/agreement.h"

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

// Logs the states of the averaging that only one of the checkpoint and the run has.
void LogDifferences(const LoadedCheckpoint& loaded, const std::vector<AveragingState>& of_run) {
  const std::vector<std::string> stored =
      AveragingStateNames(loaded.manifest.value_or(v1::CheckpointManifest()));
  const auto is_of_run = [&](const std::string& name) {
    return std::any_of(of_run.begin(), of_run.end(),
                       [&](const AveragingState& state) { return state.name == name; });
  };
  for (const AveragingState& state : of_run) {
    LOG_IF(WARNING, std::find(stored.begin(), stored.end(), state.name) == stored.end())
        << loaded.path << ": has no " << state.name << "; the run begins with zeros";
  }
  for (const std::string& name : stored) {
    LOG_IF(WARNING, !is_of_run(name)) << loaded.path << ": the run does not use its " << name;
  }
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
    replica_.slices().set_updates(loaded.manifest->optimizer().updates());
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
  if (lead() && assignment_.place().group() == 0) LogDifferences(loaded, averaging);
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
  const v1::Checkpoint& checkpoint = assignment_.spec().checkpoint();
  if (checkpoint.directory().empty() || assignment_.place().group() != 0) return absl::OkStatus();
  absl::Status mine;
  if (lead()) mine = CheckOwner(checkpoint, assignment_.lineage(), files_);
  return Agree(mine, replica_.comms().All());
}

bool RunCheckpoints::Due(uint32_t step, bool last) const {
  const v1::Checkpoint& checkpoint = assignment_.spec().checkpoint();
  if (checkpoint.directory().empty() || assignment_.place().group() != 0 || step == saved_) {
    return false;
  }
  return last || (checkpoint.every_steps() > 0 &&
                  step / checkpoint.every_steps() > saved_ / checkpoint.every_steps());
}

absl::Status RunCheckpoints::Save(const Facts& facts, std::vector<AveragingState> averaging) {
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
  manifest.mutable_optimizer()->set_updates(replica_.slices().updates());
  CADRE_RETURN_IF_ERROR(replica_.FetchOwned(/*states=*/true));
  const int64_t keep = spec.checkpoint().keep();
  Communicator& group = replica_.comms().All();
  const absl::Status saved = SaveCheckpoint(
      {.directory = spec.checkpoint().directory(), .keep = keep == 0 ? 2 : keep, .files = files_},
      replica_.index(), std::move(manifest), Values(std::move(averaging)), group);
  saved_ = facts.step;
  if (saved.ok()) {
    counters_.Add("checkpoints_saved");
    return absl::OkStatus();
  }
  // Training continues if the disk is full, but not if the group has failed, which the barrier
  // detects.
  CADRE_RETURN_IF_ERROR(group.Barrier());
  LOG_IF(ERROR, lead()) << "no checkpoint of step " << facts.step << ": " << saved;
  counters_.Add("checkpoints_failed");
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
