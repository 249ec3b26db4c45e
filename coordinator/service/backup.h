// Backups of the coordinator's store.
//
// A backup is a file with which a coordinator can be started. It is copied between two events of
// the loop, so it is consistent, and the loop waits for the copy and its check: the store is small
// (coordinator/store/sqlite_store.cc). It is marked (MetaRecord.backup): the coordinator that
// starts with it assigns no generation that its predecessor may have assigned since.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/file_system.h"
#include "coordinator/service/request_stream.h"
#include "coordinator/store/store.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// Writes a backup of the store; replaces the file. Errors: those of Store::CopyTo, and those of
// SqliteStore::Open for the copy.
absl::Status WriteBackup(Store& store, const std::string& path);

// Removes what WriteBackup has written, also a part of it.
void RemoveBackup(const std::string& path);

// Sends a file in chunks, the next one when the one before is written, and removes the file.
class BackupStream final : public RequestStream {
 public:
  // Calls `begin` when the backup is requested.
  BackupStream(const Shared& shared, grpc::CallbackServerContext* context,
               std::function<void(BackupStream& stream)> begin, std::function<void()> on_done)
      : RequestStream(shared, Limits(), context, std::move(on_done)), begin_(std::move(begin)) {}

  // Sends the file. Requires: it is complete.
  void Send(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  google::protobuf::Message& request() override { return request_; }
  void OnRequest() override { begin_(*this); }
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { SendNext(); }
  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(BackupStream& stream)> begin_;
  v1::BackupRequest request_;
  std::unique_ptr<File> file_ ABSL_GUARDED_BY(mutex_);
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre
