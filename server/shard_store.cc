// Crash safety rests on three rules of POSIX file systems: rename replaces a name atomically, fsync
// of a file makes its data durable, and fsync of a folder makes its names durable.
//
// A version:
//   1. write version-<v>.new with a header whose digest is not known yet;
//   2. write the blocks and sum up their digest;
//   3. rewrite the header with digest and discrepancy, fsync the file;
//   4. rename to version-<v>, fsync the folder;
//   5. only then is the version reported, and its contributions and version v - 2 are removed.
// A crash before 4 leaves a .new file, which Load removes; the contributions are still there and
// the coordinator repeats Apply. A crash after 4 leaves contributions that Load recognises as
// obsolete, because their round is not newer than the newest version. No journal is needed.
//
// The states of an outer optimizer are a second file, outer-<v>, which is written, synced and
// renamed before step 4. A version whose order names an outer update (Apply.outer) or coded
// versions (Apply.down) is complete only with that file; without such an order (version 0 of most
// runs, and a version that was restored from a seed) the states are zeros. Version 0 of a run that
// begins from a checkpoint with states is stored with an order that names them and no participants.
// An outer file without its version is left by a crash, and removed by Load.
//
// A contribution is written in place, chunk by chunk, under its final name. Each block has its own
// CRC, so after a crash staging resumes after the leading undamaged blocks. A contribution is
// acknowledged after fsync of file and folder. A file may be complete on disk without having been
// acknowledged; Load syncs such files, so that they count as durable.
//
// The run file (OpenRun and a flag) is replaced atomically with every OpenRun. Without it the other
// files of a run cannot be interpreted, so a damaged one moves the whole folder to
// .old-<run>-damaged.
//
// A version that fails its check, or that must be restored, is never deleted but renamed; of each
// run, the last such file is kept. Contributions are removed: ranks still hold them and stage them
// again. Archived folders count as ended runs and are removed when enough
// newer runs have ended. The lock file prevents two processes from using one folder.
//
// Cost: staging writes each byte once; an apply reads every contribution once (round_mean.cc) and
// writes the version once, with two fsyncs. The kernel is asked to write blocks to the disk as soon
// as they are complete (File::BeginSync), so that an fsync waits for the last ones only.
#include "server/shard_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/status.h"
#include "server/archive.h"
#include "server/checked_file.h"
#include "server/client/frame.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kElementBytes = sizeof(float);
// Bytes of a block of a version.
constexpr uint32_t kBlockBytes = (64 << 10) * sizeof(float);

constexpr char kIdentityFile[] = ".identity";
constexpr char kRunFile[] = "run";
constexpr char kArchivePrefix[] = ".old-";
constexpr char kVersionPrefix[] = "version-";
constexpr char kOuterPrefix[] = "outer-";
constexpr char kFramePrefix[] = "frame-";
constexpr char kStagePrefix[] = "stage-";
constexpr char kDamagedVersion[] = "version.damaged";
constexpr size_t kMaxNameBytes = 100;

// Meta of a version's file; the serialized Apply that made the version follows. Only the fields
// here change while the file is written.
struct VersionMeta {
  uint64_t version = 0;
  uint64_t digest = 0;
  int64_t begin = 0;
  int64_t end = 0;
  DiscrepancyTerms discrepancy;
};
// The meta of files that older builds wrote ends here or after the discrepancy. What it lacks is
// unknown.
constexpr size_t kOldMetaBytes = offsetof(VersionMeta, discrepancy);

std::string EncodeMeta(const VersionMeta& meta, const v1::Apply& order) {
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&meta), sizeof(meta)),
                      order.SerializeAsString());
}

absl::StatusOr<VersionMeta> MetaOf(const BlockFile& file, uint32_t version, v1::Apply* order) {
  VersionMeta meta;
  const absl::string_view bytes = file.head().meta;
  const bool fits = bytes.size() >= sizeof(meta) || bytes.size() == kOldMetaBytes;
  if (fits) std::memcpy(&meta, bytes.data(), std::min(bytes.size(), sizeof(meta)));
  const absl::string_view rest = bytes.substr(std::min(bytes.size(), sizeof(meta)));
  if (!fits || !order->ParseFromArray(rest.data(), std::ssize(rest)) || meta.version != version ||
      meta.begin > meta.end || file.head().data_bytes != (meta.end - meta.begin) * sizeof(float)) {
    return absl::DataLossError(absl::StrCat(file.path(), ": does not contain version ", version));
  }
  return meta;
}

// Meta of a file of outer states: this, then the sums.
struct OuterMeta {
  uint64_t version = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t states = 0;
};

// The size is constant, although fields of type double that are 0 are not serialized.
std::string EncodeMeta(const OuterMeta& meta, const VersionStats& stats) {
  const v1::OuterSums sums = stats.outer.value_or(v1::OuterSums());
  const v1::ResidualSums residual = stats.residual.value_or(v1::ResidualSums());
  const double values[] = {sums.change_squared(), sums.momentum_squared(), sums.product(),
                           residual.change_squared(), residual.residual_squared()};
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&meta), sizeof(meta)),
                      absl::string_view(reinterpret_cast<const char*>(values), sizeof(values)));
}

// Meta of a frame, whose elements are followed by the words of its units, 16 bits each.
struct FrameMeta {
  uint64_t version = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t elements = 0;
  uint64_t fragment = 0;
};

std::string EncodeMeta(const FrameMeta& meta) {
  return {reinterpret_cast<const char*>(&meta), sizeof(meta)};
}

// Whether the version that the order makes has states.
bool HasStates(const v1::Apply& order) { return order.has_outer() || order.has_down(); }

// Whether the version that the order makes depends on the version before.
bool RequiresBefore(const v1::Apply& order) {
  return HasStates(order) || ((order.has_up() || order.fragment() > 0) && !order.seed());
}

absl::string_view AsText(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

bool IsLoss(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

// --- ShardStore

ShardStore::ShardStore(FileSystem& files, std::string data_dir, std::string name, int threads,
                       bool archive, std::unique_ptr<File> lock)
    : files_(files),
      data_dir_(std::move(data_dir)),
      name_(std::move(name)),
      threads_(threads),
      archive_(archive),
      lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Open(FileSystem& files,
                                                             const std::string& data_dir,
                                                             const std::string& name, int threads,
                                                             bool archive) {
  if (!files.List(data_dir).ok()) {
    CADRE_RETURN_IF_ERROR(files.MakeFolder(data_dir));
    CADRE_RETURN_IF_ERROR(files.SyncFolder(fs::path(data_dir).parent_path().string()));
  }
  absl::StatusOr<std::unique_ptr<File>> lock = files.Lock(absl::StrCat(data_dir, "/.lock"));
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("data folder ", data_dir, " is in use by another aggregator"));
  }
  CADRE_RETURN_IF_ERROR(lock.status());
  auto store = std::unique_ptr<ShardStore>(
      new ShardStore(files, data_dir, name, threads, archive, *std::move(lock)));
  CADRE_RETURN_IF_ERROR(store->Identify());
  return store;
}

void ShardStore::RemoveFile(const std::string& path) {
  const absl::Status removed = files_.RemoveFile(path);
  if (!removed.ok() && !absl::IsNotFound(removed)) LOG(ERROR) << removed;
}

void ShardStore::Quarantine(const std::string& path, absl::string_view why) {
  const std::string damaged = fs::path(path).replace_filename(kDamagedVersion).string();
  LOG(ERROR) << path << ": renamed to " << damaged << ": " << why;
  if (const absl::Status renamed = files_.Rename(path, damaged); !renamed.ok()) {
    LOG(ERROR) << renamed;
  }
}

// The file has the epoch in decimal, a line feed, and the name.
absl::Status ShardStore::Identify() {
  const std::string path = absl::StrCat(data_dir_, "/", kIdentityFile);
  const absl::StatusOr<std::string> bytes = ReadChecked(files_, path);
  if (absl::IsNotFound(bytes.status())) return SaveEpoch(0);
  if (absl::IsDataLoss(bytes.status())) {
    return absl::DataLossError(absl::StrCat(
        bytes.status().message(), "; remove it if the folder belongs to aggregator '", name_, "'"));
  }
  CADRE_RETURN_IF_ERROR(bytes.status());
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(*bytes, absl::MaxSplits('\n', 1));
  if (!absl::SimpleAtoi(parts.first, &epoch_)) {
    return absl::DataLossError(absl::StrCat(path, ": has no epoch"));
  }
  if (parts.second == name_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("data folder ", data_dir_, " belongs to aggregator '", parts.second,
                   "'; use --name=", parts.second, ", or another --data-dir for '", name_, "'"));
}

absl::Status ShardStore::SaveEpoch(uint64_t epoch) {
  return WriteChecked(files_, absl::StrCat(data_dir_, "/", kIdentityFile),
                      absl::StrCat(epoch, "\n", name_));
}

absl::Status ShardStore::CheckFolder() const {
  std::vector<std::string> paths = {absl::StrCat(data_dir_, "/", kIdentityFile)};
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& run : runs_) {
      paths.push_back(absl::StrCat(RunFolder(run), "/", kRunFile));
    }
  }
  for (const std::string& path : paths) {
    const absl::Status found = files_.LastWrite(path).status();
    if (!absl::IsNotFound(found) && !absl::IsFailedPrecondition(found)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "data folder ", data_dir_, " was removed or replaced while in use: ", path, " is missing"));
  }
  return absl::OkStatus();
}

bool ShardStore::IsFileName(absl::string_view name) {
  const auto is_allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

std::string ShardStore::RunFolder(const std::string& run) const {
  return absl::StrCat(data_dir_, "/", run);
}

std::string ShardStore::ArchiveFolder(const std::string& run, const std::string& lineage) const {
  return absl::StrCat(data_dir_, "/", kArchivePrefix, run, "-", lineage);
}

std::string ShardStore::VersionPath(const std::string& run, uint32_t version) const {
  return absl::StrCat(RunFolder(run), "/", kVersionPrefix, version);
}

std::string ShardStore::OuterPath(const std::string& run, uint32_t version) const {
  return absl::StrCat(RunFolder(run), "/", kOuterPrefix, version);
}

std::string ShardStore::FramePath(const std::string& run, uint32_t version) const {
  return absl::StrCat(RunFolder(run), "/", kFramePrefix, version);
}

std::string ShardStore::ContributionName(const ContributionKey& key) {
  return absl::StrCat(key.run, "/", kStagePrefix, key.round, "-", key.group, "-", key.generation,
                      "-", key.rank, key.seed ? "-seed" : "");
}

std::string ShardStore::ContributionPath(const ContributionKey& key) const {
  return absl::StrCat(data_dir_, "/", ContributionName(key));
}

// --- Loading

absl::StatusOr<std::vector<ShardStore::FoundRun>> ShardStore::Load() {
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(data_dir_));
  std::vector<FoundRun> runs;
  for (const auto& [name, is_folder] : entries) {
    if (!is_folder || !IsFileName(name)) continue;
    absl::StatusOr<FoundRun> found = LoadRun(name);
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
  const std::string path = absl::StrCat(run_folder, "/", kRunFile);
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
  CADRE_ASSIGN_OR_RETURN(FoundRun found, ReadRun(files_, RunFolder(run)));
  if (found.open.run() != run) {
    return absl::DataLossError(
        absl::StrCat(RunFolder(run), "/", kRunFile, ": belongs to another run"));
  }
  return found;
}

absl::StatusOr<ShardStore::FoundRun> ShardStore::LoadRun(const std::string& run) {
  const std::string folder = RunFolder(run);
  CADRE_ASSIGN_OR_RETURN(FoundRun found, LoadRunFile(run));
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries, files_.List(folder));
  for (const FolderEntry& entry : entries) {
    CADRE_RETURN_IF_ERROR(LoadFile(folder, entry.name, &found));
  }
  std::sort(found.versions.begin(), found.versions.end(),
            [](const auto& a, const auto& b) { return a.version < b.version; });
  for (const FolderEntry& entry : entries) {
    absl::string_view number = entry.name;
    uint32_t version = 0;
    if (!absl::ConsumePrefix(&number, kOuterPrefix) || !absl::SimpleAtoi(number, &version))
      continue;
    const bool used = std::any_of(
        found.versions.begin(), found.versions.end(),
        [&](const StoredVersion& v) { return v.version == version && HasStates(v.order); });
    if (!used) RemoveFile(absl::StrCat(folder, "/", entry.name));
  }
  // Those of versions that do not exist are left by a crash.
  const uint32_t newest = found.versions.empty() ? 0 : found.versions.back().version;
  std::vector<uint32_t> later;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [version, bytes] : frames_[run]) {
      if (version > newest) later.push_back(version);
    }
  }
  for (const uint32_t version : later) RemoveFrame(run, version);
  for (const StoredVersion& version : found.versions) {
    Archive(run, version.order, version.stats.digest);
  }
  return found;
}

// Only a file that is damaged is put aside or removed: after another error, such as too many open
// files, it may be whole.
absl::Status ShardStore::LoadFile(const std::string& folder, const std::string& name,
                                  FoundRun* found) {
  const std::string path = absl::StrCat(folder, "/", name);
  // This is the temporary file of an interrupted write.
  if (absl::EndsWith(name, ".new")) {
    RemoveFile(path);
    return absl::OkStatus();
  }
  absl::string_view number = name;
  if (uint32_t version = 0;
      absl::ConsumePrefix(&number, kVersionPrefix) && absl::SimpleAtoi(number, &version)) {
    const auto check = [&]() -> absl::StatusOr<StoredVersion> {
      CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(files_, path, Access::kRead));
      v1::Apply order;
      CADRE_ASSIGN_OR_RETURN(const VersionMeta meta, MetaOf(*file, version, &order));
      // Every pull checks the blocks that it reads.
      if (!found->closed) CADRE_RETURN_IF_ERROR(file->Verify());
      StoredVersion found_version{version, {meta.digest, meta.discrepancy}, std::move(order)};
      if (HasStates(found_version.order)) {
        CADRE_RETURN_IF_ERROR(CheckOuter(absl::StrCat(folder, "/", kOuterPrefix, version),
                                         /*verify=*/!found->closed, found_version.order,
                                         &found_version.stats));
      }
      return found_version;
    };
    if (const absl::StatusOr<StoredVersion> checked = check(); checked.ok()) {
      found->versions.push_back(*checked);
    } else if (IsLoss(checked.status())) {
      Quarantine(path, checked.status().message());
    } else {
      return checked.status();
    }
    return absl::OkStatus();
  }
  number = name;
  if (uint32_t version = 0;
      absl::ConsumePrefix(&number, kFramePrefix) && absl::SimpleAtoi(number, &version)) {
    // Pulls check the blocks that they read.
    const auto file = BlockFile::Open(files_, path, Access::kRead);
    if (file.ok()) {
      AddFrame(found->open.run(), version, (*file)->head().data_bytes);
    } else if (IsLoss(file.status())) {
      RemoveFile(path);
    } else {
      return file.status();
    }
    return absl::OkStatus();
  }
  if (absl::StartsWith(name, kStagePrefix)) {
    const auto check = [&]() -> absl::StatusOr<FoundContribution> {
      CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(files_, path, Access::kReadWrite));
      FoundContribution contribution;
      CADRE_ASSIGN_OR_RETURN(const uint64_t blocks, file->CountWholeBlocks());
      contribution.whole_chunks = static_cast<uint32_t>(blocks);
      if (!contribution.header.ParseFromString(file->head().meta)) {
        return absl::DataLossError(absl::StrCat(path, ": the header is damaged"));
      }
      if (blocks < file->head().blocks()) return contribution;
      // After any error of a sync, what was written may be lost.
      if (const absl::Status synced = SyncContribution(*file); !synced.ok()) {
        return absl::DataLossError(synced.message());
      }
      return contribution;
    };
    if (absl::StatusOr<FoundContribution> checked = check(); checked.ok()) {
      found->contributions.push_back(*std::move(checked));
    } else if (IsLoss(checked.status())) {
      LOG(ERROR) << "contribution removed: " << checked.status();
      RemoveFile(path);
    } else {
      return checked.status();
    }
  }
  return absl::OkStatus();
}

// --- Runs

absl::Status ShardStore::SaveRun(const v1::OpenRun& open, bool closed) {
  CADRE_RETURN_IF_ERROR(files_.MakeFolder(RunFolder(open.run())));
  CADRE_RETURN_IF_ERROR(WriteChecked(files_, absl::StrCat(RunFolder(open.run()), "/", kRunFile),
                                     absl::StrCat(closed ? "1" : "0", open.SerializeAsString())));
  {
    absl::MutexLock lock(&mutex_);
    runs_.insert(open.run());
  }
  return files_.SyncFolder(data_dir_);
}

absl::Status ShardStore::ArchiveRun(const std::string& run, const std::string& lineage) {
  const std::string aside = ArchiveFolder(run, lineage);
  LOG(WARNING) << "run " << run << ", lineage " << lineage << ": set aside as " << aside;
  {
    absl::MutexLock lock(&mutex_);
    runs_.erase(run);
    frames_.erase(run);
  }
  CADRE_RETURN_IF_ERROR(files_.RemoveFolder(aside));
  CADRE_RETURN_IF_ERROR(files_.Rename(RunFolder(run), aside));
  return files_.SyncFolder(data_dir_);
}

void ShardStore::RemoveOldRuns(const std::vector<std::string>& ended, size_t keep,
                               const std::function<void(const std::string& run)>& removing) {
  std::vector<std::string> names = ended;
  const absl::StatusOr<std::vector<FolderEntry>> entries = files_.List(data_dir_);
  if (!entries.ok()) LOG(ERROR) << entries.status();
  for (const FolderEntry& entry : entries.value_or(std::vector<FolderEntry>())) {
    if (absl::StartsWith(entry.name, kArchivePrefix)) names.push_back(entry.name);
  }
  // A run file is written when its run ends; without one, the time is the lowest.
  std::map<std::pair<int64_t, std::string>, std::string> by_age;
  for (const std::string& name : names) {
    const absl::StatusOr<int64_t> written =
        files_.LastWrite(absl::StrCat(RunFolder(name), "/", kRunFile));
    by_age[{written.value_or(std::numeric_limits<int64_t>::min()), name}] = name;
  }
  while (by_age.size() > keep) {
    const std::string name = by_age.extract(by_age.begin()).mapped();
    LOG(INFO) << "removing the files of run " << name << ", which ended before the newest " << keep;
    if (!absl::StartsWith(name, kArchivePrefix)) removing(name);
    if (const absl::Status removed = RemoveRunFolder(name); !removed.ok()) LOG(ERROR) << removed;
  }
}

absl::Status ShardStore::RemoveRunFolder(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    runs_.erase(name);
    frames_.erase(name);
    archive_failures_.erase(name);
  }
  const std::string folder = RunFolder(name);
  for (const FolderEntry& entry : files_.List(folder).value_or(std::vector<FolderEntry>())) {
    if (entry.name != kRunFile) RemoveFile(absl::StrCat(folder, "/", entry.name));
  }
  return files_.RemoveFolder(folder);
}

absl::Status ShardStore::RemoveRun(const std::string& run, const std::string& lineage) {
  const absl::StatusOr<FoundRun> found = LoadRunFile(run);
  // Damaged files are set aside by the next Load; after another error the order is repeated.
  const absl::Status& read = found.status();
  if (!read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read)) return read;
  if (read.ok() && found->open.lineage() == lineage) CADRE_RETURN_IF_ERROR(RemoveRunFolder(run));
  CADRE_RETURN_IF_ERROR(files_.RemoveFolder(ArchiveFolder(run, lineage)));
  // After the answer, the order is not repeated.
  return files_.SyncFolder(data_dir_);
}

// --- Versions

absl::StatusOr<VersionStats> ShardStore::WriteVersion(
    const std::string& run, const v1::Apply& order, Interval span, const StretchRule& rule,
    int threads, const Compute& compute, const StretchWork& append,
    const std::function<absl::StatusOr<VersionStats>()>& finish) {
  const std::string path = VersionPath(run, order.round());
  const std::string temporary = absl::StrCat(path, ".new");
  VersionMeta meta{order.round(), 0, span.begin, span.end, {}};
  absl::Cleanup remove = [&] { RemoveFile(temporary); };
  const uint64_t bytes = span.size() * sizeof(float);
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<BlockFile> file,
      BlockFile::Create(files_, temporary, {EncodeMeta(meta, order), kBlockBytes, bytes}));
  BlockWriter writer(std::move(file), bytes);
  std::atomic<uint64_t> digest = 0;
  const auto write = [&](int thread, Interval stretch) -> absl::Status {
    CADRE_ASSIGN_OR_RETURN(const std::span<const float> values, compute(thread, stretch));
    digest += Digest(values, stretch.begin);
    return writer.Write((stretch.begin - span.begin) * sizeof(float), AsText(values));
  };
  CADRE_RETURN_IF_ERROR(ForEachStretch(rule, span, threads, write, append));
  CADRE_ASSIGN_OR_RETURN(VersionStats stats, finish());
  stats.digest = meta.digest = digest;
  meta.discrepancy = stats.discrepancy;
  CADRE_RETURN_IF_ERROR(writer.Finish(EncodeMeta(meta, order), bytes));
  CADRE_RETURN_IF_ERROR(files_.Rename(temporary, path));
  std::move(remove).Cancel();
  CADRE_RETURN_IF_ERROR(files_.SyncFolder(RunFolder(run)));
  return stats;
}

absl::StatusOr<VersionStats> ShardStore::WriteInitial(const RunTerms& terms,
                                                      const InitialVersion& initial) {
  const Interval span = Ledger::SpanOf(terms);
  const int number_of_states = static_cast<int>(std::ssize(initial.states));
  v1::Apply order;
  std::unique_ptr<BlockWriter> states;
  const absl::Cleanup remove = [&] {
    if (states != nullptr) RemoveFile(states->path());
  };
  if (number_of_states > 0) {
    if (terms.down) *order.mutable_down() = *terms.down;
    if (initial.has_outer) order.mutable_outer();
    CADRE_ASSIGN_OR_RETURN(states, CreateStates(terms.run, 0, span, number_of_states));
  }
  std::vector<float> values;
  std::vector<float> of_states;
  const auto compute = [&](int, Interval stretch) -> absl::StatusOr<std::span<const float>> {
    values.resize(stretch.size());
    CADRE_RETURN_IF_ERROR(initial.values(stretch.begin, values));
    if (states == nullptr) return values;
    of_states.assign(number_of_states * stretch.size(), 0);
    std::span<float> rest = of_states;
    for (const Fill& fill : initial.states) {
      if (fill) CADRE_RETURN_IF_ERROR(fill(stretch.begin, rest.first(stretch.size())));
      rest = rest.subspan(stretch.size());
    }
    CADRE_RETURN_IF_ERROR(states->Write(
        (stretch.begin - span.begin) * number_of_states * sizeof(float), AsText(of_states)));
    return values;
  };
  const auto finish = [&]() -> absl::StatusOr<VersionStats> {
    VersionStats stats;
    if (states == nullptr) return stats;
    CADRE_RETURN_IF_ERROR(FinishStates(terms.run, 0, span, number_of_states, stats, *states));
    return stats;
  };
  return WriteVersion(
      terms.run, order, span, {terms.units.get(), terms.fragments}, /*threads=*/1, compute,
      [](int, Interval) { return absl::OkStatus(); }, finish);
}

absl::StatusOr<RoundMean::Files> ShardStore::OpenContributions(const ApplyPlan& plan) {
  RoundMean::Files files;
  std::map<ContributionKey, std::vector<Interval>> unindexed;
  for (const GroupSource& group : plan.groups) {
    for (const SourceSegment& segment : group.segments) {
      RoundMean::Source& source = files[segment.key];
      if (source.file == nullptr) {
        CADRE_ASSIGN_OR_RETURN(
            std::unique_ptr<BlockFile> file,
            BlockFile::Open(files_, ContributionPath(segment.key), Access::kRead));
        source = {std::make_unique<BlockScan>(std::move(file)), segment.frame};
      }
      if (segment.key.seed || !plan.order.has_up() || source.frame != nullptr) continue;
      unindexed[segment.key].push_back(segment.span);
    }
  }
  // An earlier process has received them.
  for (const auto& [key, spans] : unindexed) {
    CADRE_ASSIGN_OR_RETURN(FrameIndex index,
                           FrameIndex::Scan(files[key].file->file(), CodecOf(plan.order.up()),
                                            {plan.units.get(), plan.fragments}, spans, plan.span));
    files[key].frame = std::make_shared<const FrameIndex>(std::move(index));
  }
  return files;
}

absl::StatusOr<VersionStats> ShardStore::WriteMean(const ApplyPlan& plan) {
  // A seed makes a version without a frame; an order that has failed may have left one.
  if (plan.order.seed()) RemoveFrame(plan.run, plan.round);
  CADRE_ASSIGN_OR_RETURN(RoundMean::Files files, OpenContributions(plan));
  v1::Apply order;
  Interval span;
  absl::StatusOr<std::unique_ptr<BlockFile>> before =
      OpenVersionFile(plan.run, plan.round - 1, &order, &span);
  if (before.ok() && span != plan.span) {
    before = absl::DataLossError(absl::StrCat((*before)->path(), ": covers other positions"));
  }
  const bool updates = HasStates(plan.order);
  if (RequiresBefore(plan.order)) {
    CADRE_RETURN_IF_ERROR(before.status());
  } else if (!before.ok()) {
    LOG(WARNING) << "the discrepancy of the round is unknown: " << before.status();
  }
  RoundUpdate update;
  absl::Cleanup remove = [&] {
    if (!updates) return;
    RemoveFile(absl::StrCat(OuterPath(plan.run, plan.round), ".new"));
    RemoveFile(absl::StrCat(FramePath(plan.run, plan.round), ".new"));
  };
  if (updates) {
    CADRE_ASSIGN_OR_RETURN(update, OpenUpdate(plan, order));
  }
  RoundMean mean(plan, std::move(files),
                 before.ok() ? std::make_unique<BlockScan>(*std::move(before)) : nullptr,
                 updates ? &update : nullptr);
  std::vector<RoundMean::Stretch> stretches(threads_);
  const auto compute = [&](int thread,
                           Interval positions) -> absl::StatusOr<std::span<const float>> {
    CADRE_RETURN_IF_ERROR(mean.Compute(positions, stretches[thread]));
    return stretches[thread].values();
  };
  const auto finish = [&]() -> absl::StatusOr<VersionStats> {
    CADRE_RETURN_IF_ERROR(mean.Check());
    VersionStats stats{.discrepancy = mean.discrepancy()};
    if (!updates) return stats;
    if (update.outer) stats.outer = update.sums;
    if (update.down) stats.residual = update.residual;
    CADRE_RETURN_IF_ERROR(FinishUpdate(plan, stats, update));
    return stats;
  };
  CADRE_ASSIGN_OR_RETURN(
      const VersionStats stats,
      WriteVersion(
          plan.run, plan.order, plan.span, {plan.units.get(), plan.fragments}, threads_, compute,
          [&](int thread, Interval) { return mean.Append(stretches[thread]); }, finish));
  Archive(plan.run, plan.order, stats.digest);
  return stats;
}

absl::Status ShardStore::VerifyBefore(const ApplyPlan& plan) {
  if (!RequiresBefore(plan.order)) return absl::OkStatus();
  v1::Apply order;
  Interval span;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                         OpenVersionFile(plan.run, plan.round - 1, &order, &span));
  CADRE_RETURN_IF_ERROR(file->Verify());
  if (!HasStates(plan.order) || !HasStates(order)) return absl::OkStatus();
  VersionStats ignored;
  return CheckOuter(OuterPath(plan.run, plan.round - 1), /*verify=*/true, order, &ignored);
}

absl::StatusOr<RoundUpdate> ShardStore::OpenUpdate(const ApplyPlan& plan, const v1::Apply& before) {
  RoundUpdate update;
  if (plan.order.has_outer()) update.outer.emplace(plan.order.outer(), plan.round);
  if (plan.order.has_down()) update.down = CodecOf(plan.order.down());
  if (HasStates(before)) {
    CADRE_ASSIGN_OR_RETURN(
        std::unique_ptr<BlockFile> file,
        BlockFile::Open(files_, OuterPath(plan.run, plan.round - 1), Access::kRead));
    const OuterMeta same{plan.round - 1, plan.span.begin, plan.span.end,
                         static_cast<uint64_t>(update.number_of_states())};
    if (!absl::StartsWith(file->head().meta,
                          absl::string_view(reinterpret_cast<const char*>(&same), sizeof(same)))) {
      return absl::DataLossError(absl::StrCat(
          file->path(), ": does not contain the outer states of version ", plan.round - 1));
    }
    update.before = std::make_unique<BlockScan>(std::move(file));
  }
  CADRE_ASSIGN_OR_RETURN(update.states,
                         CreateStates(plan.run, plan.round, plan.span, update.number_of_states()));
  if (update.down) {
    const std::span<const ExchangeUnit> units = plan.units->In(plan.span);
    CADRE_ASSIGN_OR_RETURN(
        std::unique_ptr<BlockFile> file,
        BlockFile::Create(files_, absl::StrCat(FramePath(plan.run, plan.round), ".new"),
                          {EncodeMeta(FrameMeta()), kBlockBytes, 0}));
    const int64_t elements = MaxFrameWords(units, *update.down) + std::ssize(units);
    update.frame = std::make_unique<BlockWriter>(std::move(file), elements * sizeof(float));
  }
  return update;
}

absl::StatusOr<std::unique_ptr<BlockWriter>> ShardStore::CreateStates(const std::string& run,
                                                                      uint32_t version,
                                                                      Interval span, int states) {
  const OuterMeta meta{version, span.begin, span.end, static_cast<uint64_t>(states)};
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         BlockFile::Create(files_, absl::StrCat(OuterPath(run, version), ".new"),
                                           {EncodeMeta(meta, VersionStats()), kBlockBytes, 0}));
  return std::make_unique<BlockWriter>(std::move(file),
                                       states * span.size() * int64_t{sizeof(float)});
}

absl::Status ShardStore::FinishStates(const std::string& run, uint32_t version, Interval span,
                                      int states, const VersionStats& stats, BlockWriter& writer) {
  const OuterMeta meta{version, span.begin, span.end, static_cast<uint64_t>(states)};
  CADRE_RETURN_IF_ERROR(
      writer.Finish(EncodeMeta(meta, stats), states * span.size() * int64_t{sizeof(float)}));
  return files_.Rename(writer.path(), OuterPath(run, version));
}

absl::Status ShardStore::FinishUpdate(const ApplyPlan& plan, const VersionStats& stats,
                                      RoundUpdate& update) {
  CADRE_RETURN_IF_ERROR(FinishStates(plan.run, plan.round, plan.span, update.number_of_states(),
                                     stats, *update.states));
  if (update.frame == nullptr) return absl::OkStatus();
  const FrameMeta frame{plan.round, plan.span.begin, plan.span.end,
                        update.frame_bytes / sizeof(float), plan.order.fragment()};
  // The last element may have half a number.
  std::vector<uint16_t> words = update.words;
  words.resize((words.size() + 1) / 2 * 2);
  const uint64_t words_bytes = words.size() * sizeof(uint16_t);
  const uint64_t bytes = update.frame_bytes + words_bytes;
  CADRE_RETURN_IF_ERROR(update.frame->Write(
      update.frame_bytes, {reinterpret_cast<const char*>(words.data()), words_bytes}));
  CADRE_RETURN_IF_ERROR(update.frame->Finish(EncodeMeta(frame), bytes));
  CADRE_RETURN_IF_ERROR(files_.Rename(update.frame->path(), FramePath(plan.run, plan.round)));
  AddFrame(plan.run, plan.round, bytes);
  PruneFrames(plan.run, plan.span.size() * sizeof(float));
  return absl::OkStatus();
}

void ShardStore::AddFrame(const std::string& run, uint32_t version, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  frames_[run][version] = bytes;
}

void ShardStore::PruneFrames(const std::string& run, uint64_t limit) {
  std::vector<uint32_t> removed;
  {
    absl::MutexLock lock(&mutex_);
    std::map<uint32_t, uint64_t>& frames = frames_[run];
    uint64_t bytes = 0;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
      bytes += frame->second;
      if (bytes > limit) removed.push_back(frame->first);
    }
  }
  for (const uint32_t version : removed) RemoveFrame(run, version);
}

void ShardStore::RemoveFrame(const std::string& run, uint32_t version) {
  {
    absl::MutexLock lock(&mutex_);
    const auto frames = frames_.find(run);
    if (frames == frames_.end() || frames->second.erase(version) == 0) return;
  }
  RemoveFile(FramePath(run, version));
}

absl::StatusOr<StoredFrame> ShardStore::OpenFrame(const std::string& run, uint32_t version,
                                                  const ExchangeUnits& units, uint32_t fragments,
                                                  Interval positions) const {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         BlockFile::Open(files_, FramePath(run, version), Access::kRead));
  FrameMeta meta;
  const std::string& bytes = file->head().meta;
  if (bytes.size() == sizeof(meta)) std::memcpy(&meta, bytes.data(), sizeof(meta));
  const Interval span{meta.begin, meta.end};
  if (meta.version != version || !span.contains(positions) || meta.fragment > fragments) {
    return absl::DataLossError(absl::StrCat(file->path(), ": does not contain the frame"));
  }
  const int64_t elements = static_cast<int64_t>(file->head().data_bytes / sizeof(float));
  const std::string path = file->path();
  auto reader = std::make_unique<VersionReader>(std::move(file), Interval{0, elements});
  const auto fragment = static_cast<uint32_t>(meta.fragment);
  const auto count = [&](Interval part) {
    return std::ssize(units.In(units.FragmentIn(part, fragment, fragments)));
  };
  std::vector<uint16_t> words(count(span));
  words.resize((words.size() + 1) / 2 * 2);
  if (elements < static_cast<int64_t>(meta.elements + words.size() / 2)) {
    return absl::DataLossError(absl::StrCat(path, ": is too short"));
  }
  CADRE_RETURN_IF_ERROR(
      reader->Read(static_cast<int64_t>(meta.elements),
                   {reinterpret_cast<char*>(words.data()), words.size() * sizeof(uint16_t)}));
  const auto sum = [&](Interval part) {
    return std::accumulate(words.begin(), words.begin() + count(part), int64_t{0});
  };
  const int64_t begin = sum({span.begin, positions.begin});
  const int64_t end = sum({span.begin, positions.end});
  return StoredFrame{std::move(reader), {begin, end}, fragment};
}

absl::StatusOr<StoredStates> ShardStore::OpenStates(const std::string& run,
                                                    uint32_t version) const {
  StoredStates stored;
  v1::Apply order;
  CADRE_RETURN_IF_ERROR(OpenVersionFile(run, version, &order, &stored.span).status());
  if (!HasStates(order)) return stored;
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         BlockFile::Open(files_, OuterPath(run, version), Access::kRead));
  OuterMeta meta;
  const std::string& bytes = file->head().meta;
  if (bytes.size() >= sizeof(meta)) std::memcpy(&meta, bytes.data(), sizeof(meta));
  if (meta.version != version || Interval{meta.begin, meta.end} != stored.span ||
      file->head().data_bytes != meta.states * stored.span.size() * sizeof(float)) {
    return absl::DataLossError(
        absl::StrCat(file->path(), ": does not contain the states of version ", version));
  }
  stored.states = static_cast<uint32_t>(meta.states);
  stored.reader = std::make_unique<VersionReader>(
      std::move(file), Interval{0, int64_t{stored.states} * stored.span.size()});
  return stored;
}

// The states of a stretch follow one another.
std::vector<Interval> StoredStates::ElementsOf(uint32_t state, const StretchRule& rule,
                                               const std::vector<Interval>& positions) const {
  std::vector<Interval> stretches;
  for (int64_t begin = span.begin; begin < span.end; begin = stretches.back().end) {
    stretches.push_back({begin, StretchEnd(rule, span, begin)});
  }
  std::vector<Interval> elements;
  for (const Interval& each : positions) {
    auto stretch =
        std::partition_point(stretches.begin(), stretches.end(),
                             [&](const Interval& before) { return before.end <= each.begin; });
    for (; stretch != stretches.end() && stretch->begin < each.end; ++stretch) {
      const Interval part = Intersect(*stretch, each);
      const int64_t first = (stretch->begin - span.begin) * states + state * stretch->size() +
                            (part.begin - stretch->begin);
      elements.push_back({first, first + part.size()});
    }
  }
  return elements;
}

absl::Status ShardStore::CheckOuter(const std::string& path, bool verify, const v1::Apply& order,
                                    VersionStats* stats) {
  CADRE_ASSIGN_OR_RETURN(const auto file, BlockFile::Open(files_, path, Access::kRead));
  const std::string& bytes = file->head().meta;
  OuterMeta meta;
  double sums[5];
  const bool fits = bytes.size() == sizeof(meta) + sizeof(sums);
  if (fits) {
    std::memcpy(&meta, bytes.data(), sizeof(meta));
    std::memcpy(sums, bytes.data() + sizeof(meta), sizeof(sums));
  }
  if (!fits || meta.version != order.round()) {
    return absl::DataLossError(
        absl::StrCat(path, ": does not contain the outer states of version ", order.round()));
  }
  if (verify) CADRE_RETURN_IF_ERROR(file->Verify());
  if (order.has_outer()) {
    stats->outer.emplace();
    stats->outer->set_change_squared(sums[0]);
    stats->outer->set_momentum_squared(sums[1]);
    stats->outer->set_product(sums[2]);
  }
  if (order.has_down()) {
    stats->residual.emplace();
    stats->residual->set_change_squared(sums[3]);
    stats->residual->set_residual_squared(sums[4]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockFile>> ShardStore::OpenVersionFile(const std::string& run,
                                                                       uint32_t version,
                                                                       v1::Apply* order,
                                                                       Interval* span) const {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         BlockFile::Open(files_, VersionPath(run, version), Access::kRead));
  CADRE_ASSIGN_OR_RETURN(const VersionMeta meta, MetaOf(*file, version, order));
  *span = {meta.begin, meta.end};
  return file;
}

absl::StatusOr<std::unique_ptr<VersionReader>> ShardStore::OpenVersion(const std::string& run,
                                                                       uint32_t version,
                                                                       v1::Apply* order) const {
  v1::Apply ignored;
  Interval span;
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                         OpenVersionFile(run, version, order != nullptr ? order : &ignored, &span));
  return std::make_unique<VersionReader>(std::move(file), span);
}

void ShardStore::RemoveVersion(const std::string& run, uint32_t version) {
  RemoveFile(VersionPath(run, version));
  RemoveFile(OuterPath(run, version));
}

void ShardStore::DiscardVersion(const std::string& run, uint32_t version) {
  Quarantine(VersionPath(run, version), "it is restored from values that the groups hold");
  RemoveFile(OuterPath(run, version));
  RemoveFrame(run, version);
}

// --- Contributions

absl::StatusOr<std::unique_ptr<BlockFile>> ShardStore::OpenContribution(
    const ContributionKey& key, const v1::ContributionHeader& header, int64_t elements,
    bool fresh) {
  if (!fresh) return BlockFile::Open(files_, ContributionPath(key), Access::kReadWrite);
  return BlockFile::Create(files_, ContributionPath(key),
                           {.meta = header.SerializeAsString(),
                            .block_bytes = header.chunk_elements() * kElementBytes,
                            .data_bytes = elements * sizeof(float)});
}

absl::Status ShardStore::SyncContribution(BlockFile& file) {
  const absl::Time begin = absl::Now();
  const absl::Cleanup observe = [&] { contribution_syncs_.Observe(absl::Now() - begin); };
  CADRE_RETURN_IF_ERROR(file.Sync());
  return files_.SyncFolder(fs::path(file.path()).parent_path().string());
}

absl::Status ShardStore::VerifyContribution(const ContributionKey& key) const {
  CADRE_ASSIGN_OR_RETURN(const auto file,
                         BlockFile::Open(files_, ContributionPath(key), Access::kRead));
  return file->Verify();
}

void ShardStore::RemoveContribution(const ContributionKey& key) {
  RemoveFile(ContributionPath(key));
}

void ShardStore::Archive(const std::string& run, const v1::Apply& order, uint64_t digest) {
  if (!archive_ || order.participants().empty()) return;
  const absl::Status archived = ArchiveRound(files_, RunFolder(run), order, digest);
  if (archived.ok()) return;
  const std::string text = absl::StrCat("the run can only be replayed to version ",
                                        order.round() - 1, ": ", archived.message());
  LOG(ERROR) << "run " << run << ": " << text;
  absl::MutexLock lock(&mutex_);
  archive_failures_.try_emplace(run, text);
}

}  // namespace cadre
