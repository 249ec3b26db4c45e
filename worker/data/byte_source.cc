// pread needs no lock and no file position, so that several threads can read one file.
#include "worker/data/byte_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

class FileBytes final : public ByteSource {
 public:
  FileBytes(std::string path, const RegularFile& file) : path_(std::move(path)), file_(file) {}
  ~FileBytes() override { close(file_.fd); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::string& name() const override { return path_; }
  int64_t size() const override { return file_.bytes; }

 private:
  absl::StatusOr<int64_t> Read(int64_t offset, std::span<std::byte> bytes) const override {
    int64_t done = 0;
    while (done < std::ssize(bytes)) {
      const ssize_t n =
          pread(file_.fd, bytes.data() + done, std::ssize(bytes) - done, offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "read", path_);
      // The file has become shorter since it was opened.
      if (n == 0) break;
      done += n;
    }
    return done;
  }

  const std::string path_;
  const RegularFile file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path, files));
  return std::make_unique<FileBytes>(path, file);
}

absl::Status ByteSource::ReadAt(int64_t offset, std::span<std::byte> bytes) const {
  int64_t done = -1;
  if (offset >= 0 && offset <= size() && std::ssize(bytes) <= size() - offset) {
    CADRE_ASSIGN_OR_RETURN(done, Read(offset, bytes));
  }
  if (done == std::ssize(bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(name(), ": has only ", size(), " bytes; cannot read ",
                                          bytes.size(), " at offset ", offset));
}

absl::StatusOr<std::string> ByteSource::ReadText(Interval range) const {
  std::string text(range.size(), '\0');
  CADRE_RETURN_IF_ERROR(ReadAt(range.begin, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::StatusOr<int64_t> MemoryBytes::Read(int64_t offset, std::span<std::byte> bytes) const {
  std::copy_n(bytes_.begin() + offset, bytes.size(), bytes.begin());
  return std::ssize(bytes);
}

}  // namespace cadre
