// Folders of checkpoints: how one appears in a directory, which are there, which go.
//
// A checkpoint is written in "step-<N>.tmp-<random>" and renamed to "step-<N>" when it is complete
// and durable, so that what is called step-<N> is whole. A directory takes one writer at a time: a
// draft that stands there when another begins is what a crash left, and is removed. Where a step is
// written again the old one may stand aside for a moment as "step-<N>.aside"; it counts as that
// step until the new one is in its place.
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

// By step, lowest first; what is incomplete is left out. Errors: NotFound, ... with the path.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory);

// The one with the highest step. Errors: NotFound also where there is none.
absl::StatusOr<CheckpointEntry> NewestCheckpoint(const std::string& directory);

// What `from` names in a run spec: a *.safetensors file or a checkpoint's folder, as it is; or the
// newest checkpoint of a directory of them. Errors: NotFound.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& from);

class CheckpointDraft {
 public:
  // Makes the directory if need be, and removes drafts that others left.
  static absl::StatusOr<CheckpointDraft> Begin(const std::string& directory, int64_t step);
  CheckpointDraft(CheckpointDraft&& other) noexcept;
  CheckpointDraft& operator=(CheckpointDraft&&) = delete;
  // Removes what was not published.
  ~CheckpointDraft();

  // The folder to write into.
  const std::string& path() const { return path_; }
  // Where it will stand.
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

// Those whose manifests name `run`, and all others (what has no manifest that can be read, too); by
// step. Errors: as ListCheckpoints.
struct OwnedCheckpoints {
  std::vector<CheckpointEntry> mine;
  std::vector<CheckpointEntry> others;
};
absl::StatusOr<OwnedCheckpoints> CheckpointsByOwner(const std::string& directory,
                                                    const std::string& run);

// Removes the checkpoints of `run` but the `keep` with the highest steps; that of step `written`
// stays in any case, and those of other runs do. Requires: keep >= 1. A removed one is never seen
// half there.
absl::Status PruneCheckpoints(const std::string& directory, const std::string& run, int keep,
                              int64_t written);

}  // namespace cadre
