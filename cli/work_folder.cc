// A folder that the user names is kept. It must not contain the store of an earlier cluster,
// because the coordinator would resume the runs of that store.
#include "cli/work_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {

WorkFolder::WorkFolder(std::string path, bool keep) : path_(std::move(path)), keep_(keep) {}

WorkFolder::WorkFolder(WorkFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), keep_(other.keep_) {}

// Errors are ignored: a folder that cannot be removed must not hide the result of the command.
WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!keep_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<WorkFolder> WorkFolder::Make(const std::string& dir) {
  if (!dir.empty()) {
    CADRE_RETURN_IF_ERROR(MakeFolder(dir));
    if (std::filesystem::exists(dir + "/store.db")) {
      return absl::AlreadyExistsError(absl::StrCat(
          dir, " holds the store of an earlier cluster; choose another --dir or remove it"));
    }
    return WorkFolder(dir, true);
  }
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return absl::NotFoundError(absl::StrCat("no temporary folder: ", error.message()));
  std::string path = (parent / "cadre-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "create", path);
  return WorkFolder(path, false);
}

}  // namespace cadre
