// What a store finds in its folder when a process starts. Part of ShardStore.
//
// The heads of files tell which versions there are, which is what the coordinator must know.
// Whether their blocks are whole takes as long as the disk needs to read them, so each run is
// loaded by itself, when the process has joined the coordinator (ShardHost::Verify).
#include <glog/logging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "server/checked_file.h"
#include "server/shard_store.h"

namespace cadre {
namespace {

// The number after the prefix, if the name has nothing else.
std::optional<uint32_t> NumberIn(absl::string_view name, absl::string_view prefix) {
  uint32_t number = 0;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::SimpleAtoi(name, &number)) return std::nullopt;
  return number;
}

void SortByVersion(std::vector<StoredVersion>& versions) {
  std::sort(versions.begin(), versions.end(),
            [](const auto& a, const auto& b) { return a.version < b.version; });
}

}  // namespace

absl::StatusOr<std::vector<ShardStore::FoundRun>> ShardStore::FindRuns() {
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(folder_.path));
  std::vector<FoundRun> runs;
  for (const auto& [name, is_folder] : entries) {
    if (!is_folder || !IsFileName(name)) continue;
    absl::StatusOr<FoundRun> found = FindRun(name);
    if (found.ok()) {
      runs.push_back(*std::move(found));
      absl::MutexLock lock(&mutex_);
      runs_.insert(name);
    } else if (absl::IsNotFound(found.status())) {
      // This is a folder of another program, or of a run whose OpenRun did not complete.
      LOG(WARNING) << "folder " << name << " ignored: " << found.status();
    } else if (!absl::IsDataLoss(found.status())) {
      return found.status();
    } else {
      // The folder cannot be interpreted without the run file.
      LOG(ERROR) << "run " << name << " set aside: " << found.status();
      CADRE_RETURN_IF_ERROR(ArchiveRun(name, "damaged"));
    }
  }
  return runs;
}

absl::StatusOr<ShardStore::FoundRun> ShardStore::ReadRun(FileSystem& files,
                                                         const std::string& run_folder) {
  const std::string path = absl::StrCat(run_folder, "/run");
  FoundRun found;
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, ReadChecked(files, path));
  // One byte for the state, then the OpenRun message.
  found.closed = bytes[0] == '1';
  if (!found.open.ParseFromArray(bytes.data() + 1, std::ssize(bytes) - 1)) {
    return absl::DataLossError(absl::StrCat(path, ": is damaged"));
  }
  return found;
}

absl::StatusOr<ShardStore::FoundRun> ShardStore::LoadRunFile(const std::string& run) const {
  CADRE_ASSIGN_OR_RETURN(FoundRun found, ReadRun(files_, folder_.Run(run)));
  if (found.open.run() != run) {
    return absl::DataLossError(absl::StrCat(folder_.RunFile(run), ": belongs to another run"));
  }
  return found;
}

// A file whose head is damaged is not described; LoadRun sets it aside.
absl::StatusOr<ShardStore::FoundRun> ShardStore::FindRun(const std::string& run) const {
  CADRE_ASSIGN_OR_RETURN(FoundRun found, LoadRunFile(run));
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(folder_.Run(run)));
  for (const FolderEntry& entry : entries) {
    const std::optional<uint32_t> version = NumberIn(entry.name, DataFolder::kVersionPrefix);
    const bool is_read = version || NumberIn(entry.name, DataFolder::kOuterPrefix) ||
                         absl::StartsWith(entry.name, DataFolder::kStagePrefix);
    if (found.closed || !is_read) continue;
    absl::StatusOr<std::unique_ptr<BlockFile>> file =
        BlockFile::Open(files_, absl::StrCat(folder_.Run(run), "/", entry.name), Access::kRead);
    if (file.ok()) found.unread_bytes += (*file)->head().data_bytes;
    absl::Status read = file.status();
    if (version && file.ok()) {
      absl::StatusOr<StoredVersion> described = versions_.Check(run, *version, /*verify=*/false);
      if (described.ok()) found.versions.push_back(*std::move(described));
      read = described.status();
    }
    if (!read.ok() && !IsLoss(read)) return read;
  }
  SortByVersion(found.versions);
  return found;
}

absl::StatusOr<ShardStore::FoundRun> ShardStore::LoadRun(const std::string& run,
                                                         const BlockFile::OnRead& on_read) {
  CADRE_ASSIGN_OR_RETURN(FoundRun found, LoadRunFile(run));
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(folder_.Run(run)));
  for (const FolderEntry& entry : entries) {
    CADRE_RETURN_IF_ERROR(LoadFile(entry.name, on_read, &found));
  }
  SortByVersion(found.versions);
  for (const FolderEntry& entry : entries) {
    const std::optional<uint32_t> version = NumberIn(entry.name, DataFolder::kOuterPrefix);
    if (!version) continue;
    const bool used = std::any_of(
        found.versions.begin(), found.versions.end(),
        [&](const StoredVersion& v) { return v.version == *version && HasStates(v.order); });
    if (!used) folder_.RemoveFile(absl::StrCat(folder_.Run(run), "/", entry.name));
  }
  // Those of versions that do not exist are left by a crash.
  frames_.RemoveAfter(run, found.versions.empty() ? 0 : found.versions.back().version);
  for (const StoredVersion& version : found.versions) {
    // Whether the newest is published is not known yet.
    if (version.order.attempt() > 0 && &version == &found.versions.back()) continue;
    Archive(run, version.order, version.stats.digest);
  }
  return found;
}

// Only a file that is damaged is put aside or removed: after another error, such as too many open
// files, it may be whole.
absl::Status ShardStore::LoadFile(const std::string& name, const BlockFile::OnRead& on_read,
                                  FoundRun* found) {
  const std::string& run = found->open.run();
  const std::string path = absl::StrCat(folder_.Run(run), "/", name);
  absl::Status loaded;
  if (absl::EndsWith(name, ".new")) {
    // This is the temporary file of an interrupted write.
    folder_.RemoveFile(path);
  } else if (const auto version = NumberIn(name, DataFolder::kVersionPrefix)) {
    // Every pull checks the blocks that it reads.
    absl::StatusOr<StoredVersion> checked =
        versions_.Check(run, *version, /*verify=*/!found->closed, on_read);
    loaded = checked.status();
    if (checked.ok()) found->versions.push_back(*std::move(checked));
    if (!IsLoss(loaded)) return loaded;
    versions_.Quarantine(path, loaded.message());
  } else if (const auto frame = NumberIn(name, DataFolder::kFramePrefix)) {
    // Pulls check the blocks that they read.
    loaded = frames_.Load(run, *frame);
    if (!IsLoss(loaded)) return loaded;
    folder_.RemoveFile(path);
  } else if (absl::StartsWith(name, DataFolder::kStagePrefix)) {
    // A run that has ended uses none.
    absl::StatusOr<FoundContribution> checked =
        CheckContribution(path, /*verify=*/!found->closed, on_read);
    loaded = checked.status();
    if (checked.ok()) found->contributions.push_back(*std::move(checked));
    if (!IsLoss(loaded)) return loaded;
    LOG(ERROR) << "contribution removed: " << loaded;
    folder_.RemoveFile(path);
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundContribution> ShardStore::CheckContribution(const std::string& path,
                                                                bool verify,
                                                                const BlockFile::OnRead& on_read) {
  CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(files_, path, Access::kReadWrite));
  FoundContribution contribution;
  if (!contribution.header.ParseFromString(file->head().meta)) {
    return absl::DataLossError(absl::StrCat(path, ": the header is damaged"));
  }
  if (!verify) return contribution;
  CADRE_ASSIGN_OR_RETURN(const uint64_t blocks, file->CountWholeBlocks(on_read));
  contribution.whole_chunks = static_cast<uint32_t>(blocks);
  if (blocks < file->head().blocks()) return contribution;
  // After any error of a sync, what was written may be lost.
  if (const absl::Status synced = SyncContribution(*file); !synced.ok()) {
    return absl::DataLossError(synced.message());
  }
  return contribution;
}

}  // namespace cadre
