#include "worker/data/byte_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

absl::Status Ends(const ByteSource& source, int64_t offset, size_t wanted) {
  return absl::DataLossError(absl::StrCat(source.name(), ": ends at ", source.size(), " bytes; ",
                                          wanted, " were to be read at offset ", offset));
}

bool Holds(const ByteSource& source, int64_t offset, size_t bytes) {
  return offset >= 0 && offset <= source.size() &&
         bytes <= static_cast<uint64_t>(source.size() - offset);
}

class FileBytes final : public ByteSource {
 public:
  FileBytes(std::string path, int file, int64_t size)
      : path_(std::move(path)), file_(file), size_(size) {}
  ~FileBytes() override { close(file_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::string& name() const override { return path_; }
  int64_t size() const override { return size_; }

  absl::Status ReadAt(int64_t offset, std::span<std::byte> bytes) const override {
    if (!Holds(*this, offset, bytes.size())) return Ends(*this, offset, bytes.size());
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t got = pread(file_, bytes.data() + done, bytes.size() - done,
                                offset + static_cast<int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, "read", path_);
      // It has become shorter since it was opened.
      if (got == 0) return Ends(*this, offset, bytes.size());
      done += got;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const int file_;
  const int64_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
  return std::make_unique<FileBytes>(path, file.fd, file.bytes);
}

absl::Status MemoryBytes::ReadAt(int64_t offset, std::span<std::byte> bytes) const {
  if (!Holds(*this, offset, bytes.size())) return Ends(*this, offset, bytes.size());
  const auto wanted = bytes_.subspan(static_cast<size_t>(offset), bytes.size());
  std::copy(wanted.begin(), wanted.end(), bytes.begin());
  return absl::OkStatus();
}

absl::Status ReadBytes(const std::string& path, int64_t max_bytes, std::vector<std::byte>& bytes) {
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> file, OpenByteSource(path));
  if (file->size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file->size(), " bytes; at most ", max_bytes, " are read"));
  }
  bytes.resize(file->size());
  return file->ReadAt(0, bytes);
}

}  // namespace cadre
