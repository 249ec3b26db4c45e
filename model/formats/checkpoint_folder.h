// Creates, lists and removes checkpoints atomically. A checkpoint directory contains one folder per
// checkpoint.
//
// A checkpoint is written as a draft, in the folder "step-<N>.tmp-<run>-<random>", and renamed to
// "step-<N>" when it is complete and durable, so every "step-<N>" is complete. A directory must not
// have concurrent writers of one run: when a draft begins, older drafts of the run are left from a
// crash and are removed. Those of other runs stay.
// While the checkpoint of a step is replaced, its old folder may be called "step-<N>.aside"; this
// remains the valid checkpoint until the new folder is renamed to "step-<N>".
//
// Readers are thread-safe; a CheckpointDraft is thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "model/formats/safetensors.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

// Complete checkpoints in ascending order of steps. Errors: NotFound or other file errors, naming
// the path.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(
    const std::string& directory, const RootedFiles& files = RootedFiles::Unrestricted());

// The checkpoint with the highest step. Errors: NotFound, also if there is none.
absl::StatusOr<CheckpointEntry> NewestCheckpoint(
    const std::string& directory, const RootedFiles& files = RootedFiles::Unrestricted());

// Resolves `from` of a run spec: a *.safetensors file or a checkpoint folder itself, or the newest
// checkpoint in a directory. Errors: NotFound; InvalidArgument, naming these forms, for other
// files.
absl::StatusOr<std::string> ResolveCheckpoint(
    const std::string& from, const RootedFiles& files = RootedFiles::Unrestricted());

// The weights of `from`: a checkpoint's folder, a directory of checkpoints (its newest) or a
// *.safetensors file, which may also have frozen parameters of the model. Errors: those of
// ParameterIndex::FromModel; NotFound, ... of files; those of OpenTensors.
absl::StatusOr<SafetensorsFile> OpenWeights(const std::string& from, const v1::Model& model,
                                            const RootedFiles& files = RootedFiles::Unrestricted());

// A checkpoint that is being written.
class CheckpointDraft {
 public:
  // Creates the directory if necessary, and removes drafts of `run` that a crash has left.
  // Requires: `run` is part of a file name.
  static absl::StatusOr<CheckpointDraft> Begin(
      const std::string& directory, const std::string& run, int64_t step,
      const RootedFiles& files = RootedFiles::Unrestricted());
  CheckpointDraft(CheckpointDraft&& other) noexcept;
  CheckpointDraft& operator=(CheckpointDraft&&) = delete;
  // Removes the draft unless it was published.
  ~CheckpointDraft();

  // The folder to write into.
  const std::string& path() const { return path_; }
  // The folder after publication.
  const std::string& target() const { return target_; }

  // Renames the folder, and replaces a checkpoint of the same step if there is one. Requires: the
  // files in it are complete and synced.
  absl::Status Publish();

 private:
  CheckpointDraft(std::string directory, std::string path, std::string target);
  absl::Status Replace();

  std::string directory_;
  // Empty once the draft is published.
  std::string path_;
  std::string target_;
};

// The checkpoints of a directory in ascending order of steps, divided by their run: those whose
// manifest has `run` as its run, and all others (also those without a readable manifest). Errors:
// as ListCheckpoints.
struct OwnedCheckpoints {
  std::vector<CheckpointEntry> mine;
  std::vector<CheckpointEntry> others;
};
absl::StatusOr<OwnedCheckpoints> CheckpointsByOwner(
    const std::string& directory, const std::string& run,
    const RootedFiles& files = RootedFiles::Unrestricted());

// Removes the checkpoints of `run` except the `keep` ones with the highest steps and the one of
// step `written`. Does not remove checkpoints of other runs. Removal is atomic for readers.
// Requires: keep >= 1.
absl::Status PruneCheckpoints(const std::string& directory, const std::string& run, int keep,
                              int64_t written,
                              const RootedFiles& files = RootedFiles::Unrestricted());

}  // namespace cadre
