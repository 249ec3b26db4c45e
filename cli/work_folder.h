// The folder of a cluster on this machine: store, data and logs. A temporary one is removed when it
// is not kept.
//
// Owns the folder unless it is kept. Thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

class WorkFolder {
 public:
  // `dir`, made if need be and kept; or, if it is empty, a temporary folder.
  // Errors: AlreadyExists when an earlier cluster's store is there; those of the file system.
  static absl::StatusOr<WorkFolder> Make(const std::string& dir);
  WorkFolder(WorkFolder&& other) noexcept;
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder();

  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  WorkFolder(std::string path, bool keep);

  // Empty: moved away.
  std::string path_;
  bool keep_;
};

}  // namespace cadre
