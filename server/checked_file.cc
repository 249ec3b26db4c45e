#include "server/checked_file.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {

absl::Status WriteChecked(FileSystem& files, const std::string& path, absl::string_view content) {
  const uint32_t crc = Crc32c(content);
  return WriteFileAtomically(
      path,
      absl::StrCat(content, absl::string_view(reinterpret_cast<const char*>(&crc), sizeof(crc))),
      files);
}

absl::StatusOr<std::string> ReadChecked(FileSystem& files, const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(std::string bytes, ReadFile(files, path));
  uint32_t crc = 0;
  if (bytes.size() > sizeof(crc)) {
    std::memcpy(&crc, bytes.data() + bytes.size() - sizeof(crc), sizeof(crc));
    bytes.resize(bytes.size() - sizeof(crc));
    if (Crc32c(bytes) == crc) return bytes;
  }
  return absl::DataLossError(absl::StrCat(path, ": is damaged"));
}

}  // namespace cadre
