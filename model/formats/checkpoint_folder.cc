// Atomic creation and replacement of folders.
//
// A rename can replace a file atomically, but not a folder that is not empty. Linux can exchange
// two names atomically (RENAME_EXCHANGE). If the file system does not support this, the old folder
// is first renamed to ".aside". A crash between the two renames leaves only the ".aside" folder, so
// readers accept it if its step has no other folder, and the next writer restores its name. Removal
// first renames a folder to the name of a draft, because its files are removed one by one and
// readers must not see an incomplete checkpoint.
//
// Paths may come from run files, so files are read through RootedFiles, which refuses paths outside
// the permitted folders. A checkpoint directory is resolved once. Whatever is written or removed is
// an entry of the resolved directory whose name this file constructs, so it needs no further check.
//
// States after a crash, and what the next CheckpointDraft::Begin does:
//   step-N.tmp-RUN-*              removes it
//   step-N.aside without step-N   renames it to step-N
//   step-N.aside with step-N      removes step-N.aside
#include "model/formats/checkpoint_folder.h"

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/status.h"
#include "model/formats/checkpoint_manifest.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "step-";
constexpr absl::string_view kDraftMark = ".tmp-";
constexpr absl::string_view kAsideMark = ".aside";
// The end of the name of a draft, which mkdtemp fills in, and of a checkpoint that is being
// removed. Both have the same size, so that IsDraft recognizes them.
constexpr absl::string_view kDraftEnding = "-XXXXXX";
constexpr absl::string_view kRemovedEnding = "-remove";
static_assert(kDraftEnding.size() == kRemovedEnding.size());

// The N of "step-N"; -1 for any other name.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, kPrefix) || name.empty()) return -1;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return -1;
  return absl::SimpleAtoi(name, &step) ? step : -1;
}

// "step-N.tmp-RUN-" and six characters.
bool IsDraft(absl::string_view name, absl::string_view run) {
  const size_t mark = name.find(kDraftMark);
  if (mark == absl::string_view::npos || StepOf(name.substr(0, mark)) < 0) return false;
  name.remove_prefix(mark + kDraftMark.size());
  return absl::ConsumePrefix(&name, run) && name.size() == kDraftEnding.size() &&
         absl::StartsWith(name, "-");
}

bool IsAside(absl::string_view name) {
  return absl::ConsumeSuffix(&name, kAsideMark) && StepOf(name) >= 0;
}

bool IsFile(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool IsComplete(const fs::path& folder) {
  return IsFile(folder / kManifestFile) && IsFile(folder / kModelFile) &&
         IsFile(folder / kOptimizerFile);
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), "read folder", directory);
  return names;
}

absl::Status RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), "remove", path.string());
  return absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, "rename to", to);
  return absl::OkStatus();
}

// Restores the name of an ".aside" folder if a crash between the two renames of a replacement made
// it the only complete checkpoint of its step. Removes it otherwise, because it is obsolete then.
absl::Status RestoreOrRemoveAside(const std::string& directory, const std::string& name) {
  const fs::path aside = fs::path(directory) / name;
  const fs::path target = fs::path(directory) / name.substr(0, name.size() - kAsideMark.size());
  std::error_code error;
  if (!fs::exists(target, error) && !error) return Rename(aside.string(), target.string());
  return RemoveAll(aside);
}

absl::Status NotCheckpoint(const std::string& path, const RootedFiles& files) {
  std::string what = absl::EndsWith(path, ".index.json")
                         ? ": it is an index of several files; merge them into one"
                         : "";
  if (what.empty()) what = FormatNote(ReadBeginning(path, kFormatBytes, files).value_or(""));
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is not a checkpoint", what,
                   " (expected a *.safetensors file, the folder of a checkpoint, or a directory of "
                   "checkpoints)"));
}

// Renames the folder first, because files are removed one by one.
absl::Status RemoveCheckpoint(const std::string& path, const std::string& run) {
  const std::string hidden = absl::StrCat(path, kDraftMark, run, kRemovedEnding);
  CADRE_RETURN_IF_ERROR(RemoveAll(hidden));
  CADRE_RETURN_IF_ERROR(Rename(path, hidden));
  return RemoveAll(hidden);
}

}  // namespace

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& path_of_directory,
                                                             const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const std::string directory, files.Resolve(path_of_directory));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : names) {
    const fs::path path = fs::path(directory) / name;
    if (StepOf(name) >= 0 && IsComplete(path)) entries.push_back({StepOf(name), path.string()});
    // An ".aside" folder is valid if its step has no other folder.
    const absl::string_view published = absl::StripSuffix(name, kAsideMark);
    if (IsAside(name) && IsComplete(path) &&
        !IsComplete(fs::path(directory) / std::string(published))) {
      entries.push_back({StepOf(published), path.string()});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return entries;
}

absl::StatusOr<CheckpointEntry> NewestCheckpoint(const std::string& directory,
                                                 const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                         ListCheckpoints(directory, files));
  if (entries.empty()) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": contains no complete checkpoint (a folder named step-<N>)"));
  }
  return entries.back();
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& from, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(std::string path, files.Resolve(from));
  if (absl::EndsWith(path, ".safetensors") || IsComplete(path)) return path;
  // `from` is a symbolic link to a file with another name, as in a cache of downloads.
  if (absl::EndsWith(from, ".safetensors")) return from;
  if (IsFile(path)) return NotCheckpoint(from, files);
  CADRE_ASSIGN_OR_RETURN(CheckpointEntry newest, NewestCheckpoint(path, files));
  return std::move(newest.path);
}

// A program saves its frozen parameters with the others, whereas versions do not contain them, so a
// file may have them or not.
absl::StatusOr<SafetensorsFile> OpenWeights(const std::string& from, const v1::Model& model,
                                            const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(model));
  CADRE_ASSIGN_OR_RETURN(std::string path, ResolveCheckpoint(from, files));
  if (!absl::EndsWith(path, ".safetensors")) path = (fs::path(path) / kModelFile).string();
  std::vector<NamedShape> frozen;
  for (const v1::OpaqueParameter& parameter : model.opaque().parameter()) {
    if (parameter.frozen_digest().empty()) continue;
    frozen.push_back(
        {parameter.name(), Shape({parameter.shape().begin(), parameter.shape().end()})});
  }
  return OpenTensors(path, WeightTensors(index), files, frozen);
}

absl::StatusOr<CheckpointDraft> CheckpointDraft::Begin(const std::string& path_of_directory,
                                                       const std::string& run, int64_t step,
                                                       const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const std::string directory, files.MakeFolder(path_of_directory));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  for (const std::string& name : names) {
    if (IsAside(name)) CADRE_RETURN_IF_ERROR(RestoreOrRemoveAside(directory, name));
    if (IsDraft(name, run)) CADRE_RETURN_IF_ERROR(RemoveAll(fs::path(directory) / name));
  }
  std::string target = (fs::path(directory) / absl::StrCat(kPrefix, step)).string();
  std::string path = absl::StrCat(target, kDraftMark, run, kDraftEnding);
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "make folder", path);
  return CheckpointDraft(directory, std::move(path), std::move(target));
}

CheckpointDraft::CheckpointDraft(std::string directory, std::string path, std::string target)
    : directory_(std::move(directory)), path_(std::move(path)), target_(std::move(target)) {}

CheckpointDraft::CheckpointDraft(CheckpointDraft&& other) noexcept
    : directory_(std::move(other.directory_)),
      path_(std::exchange(other.path_, "")),
      target_(std::move(other.target_)) {}

CheckpointDraft::~CheckpointDraft() {
  if (path_.empty()) return;
  std::error_code error;  // the next draft removes the rest
  fs::remove_all(path_, error);
}

absl::Status CheckpointDraft::Publish() {
  CADRE_RETURN_IF_ERROR(SyncFolder(path_));
  std::error_code error;
  if (fs::exists(target_, error)) return Replace();
  CADRE_RETURN_IF_ERROR(Rename(path_, target_));
  path_.clear();
  return SyncFolder(directory_);
}

// Exchanges the two names atomically. If the file system does not support this, renames the old
// folder to ".aside" first; after a crash the next Begin restores it (RestoreOrRemoveAside).
absl::Status CheckpointDraft::Replace() {
  if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
    const std::string aside = absl::StrCat(target_, kAsideMark);
    CADRE_RETURN_IF_ERROR(RemoveAll(aside));
    CADRE_RETURN_IF_ERROR(Rename(target_, aside));
    CADRE_RETURN_IF_ERROR(Rename(path_, target_));
    path_.clear();
    CADRE_RETURN_IF_ERROR(SyncFolder(directory_));
    return RemoveAll(aside);
  }
  CADRE_RETURN_IF_ERROR(SyncFolder(directory_));
  return RemoveAll(std::exchange(path_, ""));
}

absl::StatusOr<OwnedCheckpoints> CheckpointsByOwner(const std::string& directory,
                                                    const std::string& run,
                                                    const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, ListCheckpoints(directory, files));
  OwnedCheckpoints owned;
  for (CheckpointEntry& entry : entries) {
    const auto manifest = ReadManifest((fs::path(entry.path) / kManifestFile).string(), files);
    const bool mine = manifest.ok() && manifest->run() == run;
    (mine ? owned.mine : owned.others).push_back(std::move(entry));
  }
  return owned;
}

absl::Status PruneCheckpoints(const std::string& directory, const std::string& run, int keep,
                              int64_t written, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const OwnedCheckpoints owned, CheckpointsByOwner(directory, run, files));
  const std::vector<CheckpointEntry>& entries = owned.mine;
  for (int64_t i = 0; i + std::max(1, keep) < std::ssize(entries); ++i) {
    if (entries[i].step == written) continue;
    CADRE_RETURN_IF_ERROR(RemoveCheckpoint(entries[i].path, run));
  }
  return absl::OkStatus();
}

}  // namespace cadre
