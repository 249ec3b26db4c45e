// The folder of a local cluster's store, data and logs. A temporary folder is removed unless Keep
// is called.
//
// Owns the folder unless it is kept. Thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

class WorkFolder {
 public:
  // Returns the folder `dir`, which is created if necessary and never removed or, if `dir` is
  // empty, a temporary folder. Errors: AlreadyExists if `dir` has the store of an earlier cluster;
  // file system errors.
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
