// Checkpoint folders: atomic creation, listing and removal.
//
// A checkpoint is written in "step-<N>.tmp-<random>" and renamed to "step-<N>" when it is complete
// and durable, so every "step-<N>" is complete. A directory must not have concurrent writers:
// drafts that exist when another begins are left from a crash, and are removed. While a step is
// replaced, its old folder may be called "step-<N>.aside"; it remains valid until the new one has
// its name.
//
// Readers are thread-safe; a CheckpointDraft is thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

// Complete checkpoints in ascending order of steps. Errors: NotFound, ... with the path.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory);

// The checkpoint with the highest step. Errors: NotFound, also if there is none.
absl::StatusOr<CheckpointEntry> NewestCheckpoint(const std::string& directory);

// Resolves `from` of a run spec: a *.safetensors file or a checkpoint folder itself, or the newest
// checkpoint in a directory. Errors: NotFound.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& from);

class CheckpointDraft {
 public:
  // Creates the directory if necessary, and removes drafts that a crash has left.
  static absl::StatusOr<CheckpointDraft> Begin(const std::string& directory, int64_t step);
  CheckpointDraft(CheckpointDraft&& other) noexcept;
  CheckpointDraft& operator=(CheckpointDraft&&) = delete;
  // Removes the draft unless it was published.
  ~CheckpointDraft();

  // The folder to write into.
  const std::string& path() const { return path_; }
  // The folder after publication.
  const std::string& target() const { return target_; }

  // Renames the folder, over one of the same step if there is one. Requires: the files in it are
  // complete and synced.
  absl::Status Publish();

 private:
  CheckpointDraft(std::string directory, std::string path, std::string target);
  absl::Status Replace();

  std::string directory_;
  // Empty: published, nothing to remove.
  std::string path_;
  std::string target_;
};

// Checkpoints whose manifests name `run`, and all others (also those without a readable manifest),
// in ascending order of steps. Errors: as ListCheckpoints.
struct OwnedCheckpoints {
  std::vector<CheckpointEntry> mine;
  std::vector<CheckpointEntry> others;
};
absl::StatusOr<OwnedCheckpoints> CheckpointsByOwner(const std::string& directory,
                                                    const std::string& run);

// Removes the checkpoints of `run` except the `keep` with the highest steps and that of step
// `written`. Those of other runs are kept. Removal is atomic for readers. Requires: keep >= 1.
absl::Status PruneCheckpoints(const std::string& directory, const std::string& run, int keep,
                              int64_t written);

}  // namespace cadre
