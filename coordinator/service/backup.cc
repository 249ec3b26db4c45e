#include "coordinator/service/backup.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {
namespace {

constexpr uint64_t kChunkBytes = 256 << 10;

absl::Status RemoveCopy(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    std::error_code error;
    std::filesystem::remove(path + suffix, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot remove ", path, ": ", error.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteCopy(Store& store, const std::string& path) {
  CADRE_RETURN_IF_ERROR(store.CopyTo(path));
  // Checks the copy. Its destructor leaves one file, without a write-ahead log.
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<SqliteStore> copy,
                         SqliteStore::Open({.path = path}));
  CADRE_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, copy->Get(kMetaKey));
  if (!bytes.has_value()) return absl::OkStatus();
  v1::MetaRecord meta;
  CADRE_RETURN_IF_ERROR(ParseRecord(kMetaKey, *bytes, meta));
  meta.set_backup(true);
  return copy->Commit({{Store::Op::Kind::kPut, kMetaKey, meta.SerializeAsString()}});
}

}  // namespace

absl::Status WriteBackup(Store& store, const std::string& path) {
  // Files of a process that ended meanwhile.
  CADRE_RETURN_IF_ERROR(RemoveCopy(path));
  const absl::Status written = WriteCopy(store, path);
  // A part of a copy must not fill the disk.
  if (!written.ok()) RemoveBackup(path);
  return written;
}

void RemoveBackup(const std::string& path) { RemoveCopy(path).IgnoreError(); }

void BackupStream::Send(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::unique_ptr<File>> file = PosixFileSystem().Open(path, Access::kRead);
  // The open file stays readable.
  PosixFileSystem().RemoveFile(path).IgnoreError();
  if (!file.ok()) return EndLocked(file.status());
  file_ = *std::move(file);
  SendNext();
}

void BackupStream::SendNext() {
  const absl::StatusOr<uint64_t> size = file_->Size();
  if (!size.ok()) return EndLocked(size.status());
  if (sent_ == *size) return EndLocked(absl::OkStatus());
  v1::BackupChunk chunk;
  std::string& data = *chunk.mutable_data();
  data.resize(std::min(kChunkBytes, *size - sent_));
  const absl::StatusOr<size_t> read = file_->ReadAt(sent_, std::span(data), {});
  if (!read.ok()) return EndLocked(read.status());
  if (*read != data.size()) return EndLocked(absl::DataLossError("the copy was truncated"));
  sent_ += data.size();
  chunk.set_file_bytes(*size);
  Queue(chunk);
}

}  // namespace cadre
