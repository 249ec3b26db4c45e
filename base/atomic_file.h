// A file that is written piece by piece and appears whole or not at all.
//
//   CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
//   for (each piece) CADRE_RETURN_IF_ERROR(file.Append(piece));
//   CADRE_RETURN_IF_ERROR(file.Commit());
//
// Until Commit the bytes are in "<path>.new", which goes when the object goes. A path takes one
// writer at a time. Movable; thread-compatible.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

class AtomicFile {
 public:
  // Errors: as ErrnoStatus in base/file.h, here and below.
  static absl::StatusOr<AtomicFile> Create(std::string path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::string& path() const { return path_; }

  // Errors: ResourceExhausted for a full disk. After an error only destruction makes sense.
  absl::Status Append(absl::string_view bytes);

  // Syncs, renames over `path`, syncs the folder. Requires: called once. After an error the target
  // is as it was; or, if only the last sync failed, new but perhaps not durable.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string beside, int fd);
  absl::Status Close();

  std::string path_;
  std::string beside_;
  // -1: closed.
  int fd_ = -1;
  // Whether `beside_` is ours to remove.
  bool pending_ = true;
};

}  // namespace cadre
