#include "server/checked_file.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/status.h"
#include "server/file_format.h"

namespace cadre {
namespace {

constexpr absl::string_view kFormatMarker = "CDRFMT";
constexpr uint32_t kCheckedFormat = 1;

// The content of the first format begins with a digit, or with a digest, which is not this text.
uint32_t FormatOf(absl::string_view content) {
  uint32_t format = 0;
  const bool marked = absl::ConsumePrefix(&content, kFormatMarker) &&
                      absl::SimpleAtoi(content.substr(0, 2), &format);
  return marked ? format : kCheckedFormat;
}

}  // namespace

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
    if (Crc32c(bytes) == crc) {
      CADRE_RETURN_IF_ERROR(CheckFormat(path, FormatOf(bytes), kCheckedFormat));
      return bytes;
    }
  }
  return absl::DataLossError(absl::StrCat(path, ": is damaged"));
}

}  // namespace cadre
