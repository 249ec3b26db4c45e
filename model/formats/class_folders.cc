// A class's number is the position of its folder's name in byte order, independent of the file
// system's order and of the locale, so that all hosts number the classes alike.
#include "model/formats/class_folders.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/status.h"

namespace cadre {

namespace fs = std::filesystem;

absl::Status VisitEntries(const std::string& folder, const RootedFiles& files,
                          absl::FunctionRef<absl::Status(const fs::directory_entry&)> visit) {
  CADRE_ASSIGN_OR_RETURN(const std::string resolved, files.Resolve(folder));
  std::error_code error;
  fs::directory_iterator entry(resolved, error);
  // increment() instead of ++, which throws.
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    CADRE_RETURN_IF_ERROR(visit(*entry));
  }
  return error ? ErrnoStatus(error.value(), "list", folder) : absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListClassFolders(const std::string& folder,
                                                          const RootedFiles& files) {
  std::vector<std::string> names;
  const auto add = [&](const fs::directory_entry& entry) {
    std::error_code unknown;
    if (entry.is_directory(unknown)) names.push_back(entry.path().filename().string());
    if (entry.exists(unknown)) return absl::OkStatus();
    // Without it, the classes after it would have other numbers.
    return ErrnoStatus(unknown ? unknown.value() : ENOENT,
                       "tell whether this is a class folder:", entry.path().string());
  };
  CADRE_RETURN_IF_ERROR(VisitEntries(folder, files, add));
  std::sort(names.begin(), names.end());
  return names;
}

const std::string* FindUnknownClass(const std::vector<std::string>& present,
                                    const std::vector<std::string>& known) {
  const auto unknown = std::find_if(present.begin(), present.end(), [&](const std::string& name) {
    return !std::binary_search(known.begin(), known.end(), name);
  });
  return unknown == present.end() ? nullptr : &*unknown;
}

}  // namespace cadre
