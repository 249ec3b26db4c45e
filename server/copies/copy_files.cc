// The files of a version have all that a shard needs to continue from it: its values with the
// order that made it and its digest, its states, and the frame that ranks pull. Files are sent as
// blocks with their checksums, so a copy has the bytes of the original without being interpreted.
#include "server/copies/copy_files.h"

#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/protocol.h"
#include "base/status.h"
#include "model/shard_copies.h"
#include "server/version_files.h"

namespace cadre {
namespace {

// An Apply may write the same version meanwhile.
constexpr absl::string_view kTemporary = ".fetched.new";

// Limit of the bytes of a file: a version has at most three states (model/averaging_state.h), and a
// frame is hardly longer than the values.
uint64_t MaxFileBytes(Interval span) { return 3 * span.size() * sizeof(float) + (64 << 10); }

// An error of this aggregator's disk does not mean that the original is lost.
absl::Status OnOwnDisk(const absl::Status& status) {
  return IsLoss(status) ? absl::UnavailableError(status.message()) : status;
}

// The file while it is fetched.
class FetchedFile {
 public:
  FetchedFile(FileSystem& files, std::string path, uint64_t max_bytes)
      : files_(files), path_(std::move(path)), max_bytes_(max_bytes) {}

  uint64_t next_block() const { return next_; }
  bool complete() const { return file_ != nullptr && next_ == file_->head().blocks(); }
  const std::string& path() const { return path_; }

  absl::Status Receive(const v1::CopyReply& reply) {
    return OnOwnDisk(reply.has_chunk() ? ReceiveBlock(reply.chunk()) : ReceiveHead(reply));
  }
  absl::Status Sync() { return OnOwnDisk(file_->Sync()); }

 private:
  absl::Status ReceiveHead(const v1::CopyReply& reply) {
    const BlockFileHead head{reply.meta(), reply.block_bytes(), reply.data_bytes()};
    if (head.block_bytes == 0 || head.data_bytes > max_bytes_) {
      return absl::InternalError(absl::StrCat("the file has ", head.data_bytes,
                                              " bytes in blocks of ", head.block_bytes,
                                              ", at most ", max_bytes_, " are expected"));
    }
    if (file_ != nullptr) {  // It is requested again, from a later block on.
      const bool same = file_->head().meta == head.meta &&
                        file_->head().block_bytes == head.block_bytes &&
                        file_->head().data_bytes == head.data_bytes;
      return same ? absl::OkStatus() : absl::AbortedError("the file was replaced meanwhile");
    }
    CADRE_ASSIGN_OR_RETURN(file_, BlockFile::Create(files_, path_, head));
    return absl::OkStatus();
  }

  absl::Status ReceiveBlock(const v1::Chunk& chunk) {
    if (file_ == nullptr || complete() || chunk.index() != next_ ||
        chunk.data().size() != file_->head().BytesOf(next_)) {
      return absl::InternalError(absl::StrCat("block ", chunk.index(), " is not expected"));
    }
    if (Crc32c(chunk.data()) != chunk.crc32c()) {
      return absl::UnavailableError(
          absl::StrCat("block ", chunk.index(), " was damaged in transit"));
    }
    CADRE_RETURN_IF_ERROR(file_->WriteBlock(next_, chunk.data(), chunk.crc32c()));
    ++next_;
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string path_;
  const uint64_t max_bytes_;
  std::unique_ptr<BlockFile> file_;
  uint64_t next_ = 0;
};

// The number of a version at the end of the name; nothing for another name.
std::optional<uint32_t> VersionIn(absl::string_view name) {
  uint32_t version = 0;
  const bool is_version =
      absl::ConsumePrefix(&name, DataFolder::kVersionPrefix) && absl::SimpleAtoi(name, &version);
  return is_version ? std::optional(version) : std::nullopt;
}

}  // namespace

std::string CopyFiles::NameOf(uint32_t shard) {
  return absl::StrCat(DataFolder::kCopyPrefix, shard);
}

std::string CopyFiles::PathOf(const std::string& run, uint32_t shard, uint32_t version,
                              v1::CopyRequest::File file, Target target) const {
  const DataFolder copies = FolderOf(run);
  const DataFolder& folder = target == Target::kShard ? folder_ : copies;
  const std::string name = target == Target::kShard ? run : NameOf(shard);
  switch (file) {
    case v1::CopyRequest::STATES:
      return folder.Outer(name, version);
    case v1::CopyRequest::FRAME:
      return folder.Frame(name, version);
    default:
      return folder.Version(name, version);
  }
}

absl::StatusOr<std::unique_ptr<BlockFile>> CopyFiles::Open(const v1::CopyRequest& request,
                                                           Target target) const {
  const std::string path =
      PathOf(request.run(), request.shard(), request.version(), request.file(), target);
  return BlockFile::Open(folder_.files, path, Access::kRead);
}

std::map<uint32_t, uint64_t> CopyFiles::Find(const std::string& run, uint32_t shard) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = known_.find({run, shard}); found != known_.end()) return found->second;
  }
  const DataFolder copies = FolderOf(run);
  const std::string name = NameOf(shard);
  std::map<uint32_t, uint64_t> stored;
  for (const FolderEntry& entry :
       folder_.files.List(copies.Run(name)).value_or(std::vector<FolderEntry>())) {
    const std::optional<uint32_t> version = VersionIn(entry.name);
    if (!version.has_value()) continue;
    const absl::StatusOr<StoredVersion> checked =
        VersionFiles(copies).Check(name, *version, /*verify=*/true);
    if (checked.ok()) {
      stored[*version] = checked->stats.digest;
    } else {
      LOG(ERROR) << "run " << run << ": a copy of shard " << shard
                 << " is not used: " << checked.status();
    }
  }
  absl::MutexLock lock(&mutex_);
  return known_.try_emplace({run, shard}, std::move(stored)).first->second;
}

int64_t CopyFiles::CountVersions(const std::string& run) const {
  absl::MutexLock lock(&mutex_);
  int64_t versions = 0;
  for (auto copy = known_.lower_bound({run, 0}); copy != known_.end() && copy->first.first == run;
       ++copy) {
    versions += std::ssize(copy->second);
  }
  return versions;
}

void CopyFiles::List(const v1::OpenRun& open, v1::RunOpened& opened) {
  if (!HasCopies(open.spec().averaging(), open.shards())) return;
  const uint32_t shard = CopiedShard(open.shard(), open.shards());
  for (const auto& [version, digest] : Find(open.run(), shard)) {
    v1::ShardCopy& copy = *opened.add_copies();
    copy.set_shard(shard);
    copy.set_version(version);
    copy.set_digest(digest);
  }
}

absl::Status CopyFiles::Begin(const v1::CopyShard& order) {
  const DataFolder copies = FolderOf(order.run());
  const std::string name = NameOf(order.shard());
  CADRE_RETURN_IF_ERROR(folder_.files.MakeFolder(copies.Run(name)));
  CADRE_RETURN_IF_ERROR(folder_.files.SyncFolder(copies.path));
  std::map<uint32_t, uint64_t> held = Find(order.run(), order.shard());
  // A version with another digest, which was never committed.
  held.erase(order.version());
  if (held.size() > 1) held.erase(held.begin(), std::prev(held.end()));
  CADRE_ASSIGN_OR_RETURN(const std::vector<FolderEntry> entries,
                         folder_.files.List(copies.Run(name)));
  {
    absl::MutexLock lock(&mutex_);
    known_[{order.run(), order.shard()}] = held;
  }
  const std::string kept = held.empty() ? "" : absl::StrCat("-", held.begin()->first);
  // Values first: without them, a version does not exist.
  for (const bool values : {true, false}) {
    for (const FolderEntry& entry : entries) {
      if (VersionIn(entry.name).has_value() != values) continue;
      if (!kept.empty() && absl::EndsWith(entry.name, kept)) continue;
      folder_.RemoveFile(absl::StrCat(copies.Run(name), "/", entry.name));
    }
  }
  return folder_.files.SyncFolder(copies.Run(name));
}

absl::StatusOr<std::vector<std::string>> CopyFiles::Fetch(const v1::CopyShard& order, Interval span,
                                                          Target target,
                                                          const CopyTransport& transport) const {
  std::vector<std::string> paths;
  absl::Cleanup remove = [&] { Discard(paths); };
  const auto fetch = [&](v1::CopyRequest::File file) {
    const std::string path = PathOf(order.run(), order.shard(), order.version(), file, target);
    const absl::Status fetched = FetchFile(order, file, path, MaxFileBytes(span), transport);
    if (fetched.ok()) paths.push_back(path);
    return fetched;
  };
  CADRE_RETURN_IF_ERROR(fetch(v1::CopyRequest::VALUES));
  CADRE_ASSIGN_OR_RETURN(const v1::Apply made, CheckValues(order, span, paths.front()));
  if (HasStates(made)) CADRE_RETURN_IF_ERROR(fetch(v1::CopyRequest::STATES));
  if (made.has_down()) {
    // Without it, ranks pull the version.
    const absl::Status frame = fetch(v1::CopyRequest::FRAME);
    if (!frame.ok() && !absl::IsNotFound(frame)) return frame;
  }
  std::move(remove).Cancel();
  std::reverse(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<v1::Apply> CopyFiles::CheckValues(const v1::CopyShard& order, Interval span,
                                                 const std::string& path) const {
  CADRE_ASSIGN_OR_RETURN(
      const VersionHead head,
      ReadVersionHead(folder_.files, absl::StrCat(path, kTemporary), order.version()));
  if (head.digest == order.digest() && head.span == span) return head.order;
  return absl::DataLossError(absl::StrCat(
      "version ", order.version(), " of shard ", order.shard(), " on ", order.aggregator(),
      " has digest ", DigestHex(head.digest), ", but ", DigestHex(order.digest()), " is required"));
}

absl::Status CopyFiles::Publish(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths) {
    CADRE_RETURN_IF_ERROR(folder_.files.Rename(absl::StrCat(path, kTemporary), path));
  }
  return folder_.files.SyncFolder(std::filesystem::path(paths.front()).parent_path().string());
}

void CopyFiles::Add(const v1::CopyShard& order) {
  absl::MutexLock lock(&mutex_);
  known_[{order.run(), order.shard()}][order.version()] = order.digest();
}

// An attempt that has received a block is followed by another one, from the next block on.
absl::Status CopyFiles::FetchFile(const v1::CopyShard& order, v1::CopyRequest::File file,
                                  const std::string& path, uint64_t max_bytes,
                                  const CopyTransport& transport) const {
  FetchedFile fetched(folder_.files, absl::StrCat(path, kTemporary), max_bytes);
  v1::CopyRequest request;
  request.set_protocol(kProtocol);
  request.set_run(order.run());
  request.set_lineage(order.lineage());
  request.set_shard(order.shard());
  request.set_version(order.version());
  request.set_file(file);
  absl::Status status;
  do {
    request.set_first_block(fetched.next_block());
    status = transport(order, request,
                       [&](const v1::CopyReply& reply) { return fetched.Receive(reply); });
  } while (absl::IsUnavailable(status) && fetched.next_block() > request.first_block());
  if (status.ok() && !fetched.complete()) {
    status = absl::UnavailableError(absl::StrCat(path, ": was received in part"));
  }
  if (status.ok()) status = fetched.Sync();
  if (!status.ok()) folder_.RemoveFile(fetched.path());
  return status;
}

void CopyFiles::Discard(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths) folder_.RemoveFile(absl::StrCat(path, kTemporary));
}

void CopyFiles::Forget(const std::string& run) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(known_, [&](const auto& copy) { return copy.first.first == run; });
}

}  // namespace cadre
