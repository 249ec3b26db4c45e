// Crash safety rests on three rules of POSIX file systems: rename replaces a name atomically, fsync
// of a file makes its data durable, and fsync of a folder makes its names durable.
//
// A version:
//   1. write version-<v>.new with a header whose digest is not known yet;
//   2. write the blocks and sum up their digest;
//   3. rewrite the header with digest and discrepancy, fsync the file;
//   4. rename to version-<v>, fsync the folder;
//   5. only then is the version reported, and version v - 2 is removed; the contributions are when
//   it
//      is published.
// A crash before 4 leaves a .new file, which LoadRun removes; the contributions are still there and
// the coordinator repeats Apply. A crash after 4 leaves contributions that LoadRun recognises as
// obsolete, because their round is not newer than the newest version. No journal is needed.
//
// The states of an outer optimizer are a second file, outer-<v>, which is written, synced and
// renamed before step 4. A version whose order names an outer update (Apply.outer) or coded
// versions (Apply.down) is complete only with that file; without such an order (version 0 of most
// runs, and a version that was restored from a seed) the states are zeros. Version 0 of a run that
// begins from a checkpoint with states is stored with an order that names them and no participants.
// An outer file without its version is left by a crash, and removed by LoadRun.
//
// A contribution is written in place, chunk by chunk, under its final name. Each block has its own
// CRC, so after a crash staging resumes after the leading undamaged blocks. A contribution is
// acknowledged after fsync of file and folder. A file may be complete on disk without having been
// acknowledged; LoadRun syncs such files, so that they count as durable.
//
// The run file (OpenRun and a flag) is replaced atomically with every OpenRun. Without it the other
// files of a run cannot be interpreted, so a damaged one moves the whole folder to
// .old-<run>-damaged.
//
// A version that fails its check, or that must be restored, is never deleted but renamed; of each
// run, the last such file is kept. Contributions are removed: ranks still hold them and stage them
// again. Of the folders that were set aside, the newest ones are kept. The lock file prevents two
// processes from using one folder.
//
// Cost: staging writes each byte once; an apply reads every contribution once (round_mean.cc) and
// writes the version once, with two fsyncs. The kernel is asked to write blocks to the disk as soon
// as they are complete (File::BeginSync), so that an fsync waits for the last ones only.
#include "server/shard_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/file_limit.h"
#include "base/status.h"
#include "kernels/codec/coding.h"
#include "server/archive.h"
#include "server/checked_file.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kElementBytes = sizeof(float);
constexpr char kIdentityFile[] = ".identity";
constexpr size_t kMaxNameBytes = 100;
// Maximum number of folders of runs that are set aside because their ids were given to others.
constexpr size_t kMaxSetAside = 16;

}  // namespace

// --- ShardStore

ShardStore::ShardStore(FileSystem& files, std::string data_dir, std::string name, int threads,
                       bool archive, std::unique_ptr<File> lock)
    : files_(files),
      folder_{files, std::move(data_dir)},
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

// The file has the epoch in decimal, a line feed, and the name.
absl::Status ShardStore::Identify() {
  const std::string path = absl::StrCat(folder_.path, "/", kIdentityFile);
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
      absl::StrCat("data folder ", folder_.path, " belongs to aggregator '", parts.second,
                   "'; use --name=", parts.second, ", or another --data-dir for '", name_, "'"));
}

absl::Status ShardStore::SaveEpoch(uint64_t epoch) {
  return WriteChecked(files_, absl::StrCat(folder_.path, "/", kIdentityFile),
                      absl::StrCat(epoch, "\n", name_));
}

absl::Status ShardStore::CheckFolder() const {
  std::vector<std::string> paths = {absl::StrCat(folder_.path, "/", kIdentityFile)};
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& run : runs_) {
      paths.push_back(folder_.RunFile(run));
    }
  }
  for (const std::string& path : paths) {
    const absl::Status found = files_.LastWrite(path).status();
    if (!absl::IsNotFound(found) && !absl::IsFailedPrecondition(found)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("data folder ", folder_.path, " was removed or replaced while in use: ", path,
                     " is missing"));
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

// --- Runs

absl::Status ShardStore::SaveRun(const v1::OpenRun& open, bool closed) {
  CADRE_RETURN_IF_ERROR(files_.MakeFolder(folder_.Run(open.run())));
  CADRE_RETURN_IF_ERROR(WriteChecked(files_, folder_.RunFile(open.run()),
                                     absl::StrCat(closed ? "1" : "0", open.SerializeAsString())));
  {
    absl::MutexLock lock(&mutex_);
    runs_.insert(open.run());
  }
  return files_.SyncFolder(folder_.path);
}

absl::Status ShardStore::ArchiveRun(const std::string& run, const std::string& lineage) {
  const std::string aside = folder_.Archived(run, lineage);
  LOG(WARNING) << "run " << run << ", lineage " << lineage << ": set aside as " << aside;
  {
    absl::MutexLock lock(&mutex_);
    runs_.erase(run);
  }
  frames_.Forget(run);
  copies_.Forget(run);
  CADRE_RETURN_IF_ERROR(files_.RemoveFolder(aside));
  CADRE_RETURN_IF_ERROR(files_.Rename(folder_.Run(run), aside));
  return files_.SyncFolder(folder_.path);
}

void ShardStore::RemoveOldSetAside() {
  const absl::StatusOr<std::vector<FolderEntry>> entries = files_.List(folder_.path);
  if (!entries.ok()) LOG(ERROR) << entries.status();
  // A run file is written when its run ends; without one, the time is the lowest.
  std::set<std::pair<int64_t, std::string>> by_age;
  for (const FolderEntry& entry : entries.value_or(std::vector<FolderEntry>())) {
    if (!absl::StartsWith(entry.name, DataFolder::kArchivePrefix)) continue;
    const absl::StatusOr<int64_t> written = files_.LastWrite(folder_.RunFile(entry.name));
    by_age.emplace(written.value_or(std::numeric_limits<int64_t>::min()), entry.name);
  }
  while (by_age.size() > kMaxSetAside) {
    const std::string name = by_age.extract(by_age.begin()).value().second;
    LOG(INFO) << "removing " << name << ", which was set aside before the newest " << kMaxSetAside;
    if (const absl::Status removed = RemoveRunFolder(name); !removed.ok()) LOG(ERROR) << removed;
  }
}

absl::Status ShardStore::RemoveRunFolder(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    runs_.erase(name);
    archive_failures_.erase(name);
  }
  frames_.Forget(name);
  copies_.Forget(name);
  const std::string folder = folder_.Run(name);
  for (const FolderEntry& entry : files_.List(folder).value_or(std::vector<FolderEntry>())) {
    const std::string path = absl::StrCat(folder, "/", entry.name);
    if (entry.is_folder) CADRE_RETURN_IF_ERROR(files_.RemoveFolder(path));
    if (!entry.is_folder && entry.name != "run") folder_.RemoveFile(path);
  }
  return files_.RemoveFolder(folder);
}

absl::Status ShardStore::RemoveRun(const std::string& run, const std::string& lineage) {
  const absl::StatusOr<FoundRun> found = LoadRunFile(run);
  // Damaged files are set aside by the next process; after another error the order is repeated.
  const absl::Status& read = found.status();
  if (!read.ok() && !absl::IsNotFound(read) && !absl::IsDataLoss(read)) return read;
  if (read.ok() && found->open.lineage() == lineage) CADRE_RETURN_IF_ERROR(RemoveRunFolder(run));
  CADRE_RETURN_IF_ERROR(files_.RemoveFolder(folder_.Archived(run, lineage)));
  // After the answer, the order is not repeated.
  return files_.SyncFolder(folder_.path);
}

// --- Versions

absl::StatusOr<VersionStats> ShardStore::WriteInitial(const RunTerms& terms,
                                                      const InitialVersion& initial) {
  const Interval span = Ledger::SpanOf(terms);
  const int number_of_states = static_cast<int>(std::ssize(initial.states));
  v1::Apply order;
  std::unique_ptr<BlockWriter> states;
  const absl::Cleanup remove = [&] {
    if (states != nullptr) folder_.RemoveFile(states->path());
  };
  if (number_of_states > 0) {
    if (terms.down) *order.mutable_down() = *terms.down;
    if (initial.has_outer) order.mutable_outer();
    CADRE_ASSIGN_OR_RETURN(states, versions_.CreateStates(terms.run, 0, span, number_of_states));
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
    CADRE_RETURN_IF_ERROR(
        versions_.FinishStates(terms.run, 0, span, number_of_states, stats, *states));
    return stats;
  };
  return versions_.Write(
      terms.run, order, span, {terms.units.get(), terms.fragments}, /*threads=*/1, compute,
      [](int, Interval) { return absl::OkStatus(); }, finish);
}

// A round has one contribution for each rank of its groups, which may be more files than the
// process may have open. Those for which there is no room are opened for each read.
absl::StatusOr<RoundMean::Files> ShardStore::OpenContributions(const ApplyPlan& plan) {
  RoundMean::Files files;
  // The other half is for connections, and for other rounds.
  uint64_t room = FreeDescriptors() / 2;
  std::map<ContributionKey, std::vector<Interval>> unindexed;
  for (const GroupSource& group : plan.groups) {
    for (const SourceSegment& segment : group.segments) {
      RoundMean::Source& source = files[segment.key];
      if (source.file == nullptr) {
        CADRE_ASSIGN_OR_RETURN(
            std::unique_ptr<BlockFile> file,
            BlockFile::Open(files_, folder_.Contribution(segment.key), Access::kRead));
        source = {std::make_unique<BlockScan>(std::move(file)), segment.frame};
        if (room == 0) {
          source.file->CloseBetweenReads();
        } else {
          --room;
        }
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
  // A seed or a copy makes a version without a frame; an order that has failed, or an earlier
  // attempt, may have left one.
  frames_.Remove(plan.run, plan.round);
  if (plan.order.has_restores()) {
    CADRE_ASSIGN_OR_RETURN(const VersionStats stats, versions_.Copy(plan));
    if (plan.order.attempt() == 0) Archive(plan.run, plan.order, stats.digest);
    return stats;
  }
  CADRE_ASSIGN_OR_RETURN(RoundMean::Files files, OpenContributions(plan));
  v1::Apply order;
  Interval span;
  absl::StatusOr<std::unique_ptr<BlockFile>> before =
      versions_.OpenFile(plan.run, plan.round - 1, &order, &span);
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
    folder_.RemoveFile(absl::StrCat(folder_.Outer(plan.run, plan.round), ".new"));
    folder_.RemoveFile(absl::StrCat(folder_.Frame(plan.run, plan.round), ".new"));
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
    VersionStats stats{.discrepancy = mean.discrepancy(), .changes = mean.changes()};
    if (!updates) return stats;
    if (update.outer) stats.outer = update.sums;
    if (update.down) stats.residual = update.residual;
    CADRE_RETURN_IF_ERROR(FinishUpdate(plan, stats, update));
    return stats;
  };
  CADRE_ASSIGN_OR_RETURN(
      const VersionStats stats,
      versions_.Write(
          plan.run, plan.order, plan.span, {plan.units.get(), plan.fragments}, threads_, compute,
          [&](int thread, Interval) { return mean.Append(stretches[thread]); }, finish));
  if (plan.order.attempt() == 0) Archive(plan.run, plan.order, stats.digest);
  return stats;
}

absl::Status ShardStore::VerifyBefore(const ApplyPlan& plan) {
  if (!RequiresBefore(plan.order)) return absl::OkStatus();
  const uint32_t before =
      plan.order.has_restores() ? plan.order.restores() : plan.order.round() - 1;
  v1::Apply order;
  Interval span;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                         versions_.OpenFile(plan.run, before, &order, &span));
  CADRE_RETURN_IF_ERROR(file->Verify());
  if (!HasStates(plan.order) || !HasStates(order)) return absl::OkStatus();
  VersionStats ignored;
  return versions_.CheckStates(plan.run, order, /*verify=*/true, &ignored);
}

absl::StatusOr<RoundUpdate> ShardStore::OpenUpdate(const ApplyPlan& plan, const v1::Apply& before) {
  RoundUpdate update;
  if (plan.order.has_outer()) update.outer.emplace(plan.order.outer(), plan.round);
  if (plan.order.has_down()) update.down = CodecOf(plan.order.down());
  const int states = update.number_of_states();
  if (HasStates(before)) {
    CADRE_ASSIGN_OR_RETURN(update.before,
                           versions_.ScanStates(plan.run, plan.round - 1, plan.span, states));
  }
  CADRE_ASSIGN_OR_RETURN(update.states,
                         versions_.CreateStates(plan.run, plan.round, plan.span, states));
  if (update.down) {
    CADRE_ASSIGN_OR_RETURN(update.frame, frames_.Create(plan, *update.down));
  }
  return update;
}

absl::Status ShardStore::FinishUpdate(const ApplyPlan& plan, const VersionStats& stats,
                                      RoundUpdate& update) {
  CADRE_RETURN_IF_ERROR(versions_.FinishStates(plan.run, plan.round, plan.span,
                                               update.number_of_states(), stats, *update.states));
  return update.frame == nullptr ? absl::OkStatus() : frames_.Finish(plan, update);
}

void ShardStore::DiscardVersion(const std::string& run, uint32_t version) {
  versions_.Quarantine(folder_.Version(run, version),
                       "it is restored from values that the groups hold");
  folder_.RemoveFile(folder_.Outer(run, version));
  frames_.Remove(run, version);
}

// --- Contributions

absl::StatusOr<std::unique_ptr<BlockFile>> ShardStore::OpenContribution(
    const ContributionKey& key, const v1::ContributionHeader& header, int64_t elements,
    bool fresh) {
  if (!fresh) return BlockFile::Open(files_, folder_.Contribution(key), Access::kReadWrite);
  return BlockFile::Create(files_, folder_.Contribution(key),
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
                         BlockFile::Open(files_, folder_.Contribution(key), Access::kRead));
  return file->Verify();
}

void ShardStore::RemoveContribution(const ContributionKey& key) {
  folder_.RemoveFile(folder_.Contribution(key));
}

void ShardStore::Archive(const std::string& run, const v1::Apply& order, uint64_t digest) {
  if (!archive_ || (order.participants().empty() && !order.has_restores())) return;
  const absl::Status archived = ArchiveRound(files_, folder_.Run(run), order, digest);
  if (archived.ok()) return;
  const std::string text = absl::StrCat("the run can only be replayed to version ",
                                        order.round() - 1, ": ", archived.message());
  LOG(ERROR) << "run " << run << ": " << text;
  absl::MutexLock lock(&mutex_);
  archive_failures_.try_emplace(run, text);
}

}  // namespace cadre
