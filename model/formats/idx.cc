#include "model/formats/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr uint8_t kUnsignedByte = 8;
constexpr size_t kMagicBytes = 4;
constexpr size_t kExtentBytes = 4;
// Size of reads and of zlib's buffer.
constexpr size_t kBlockBytes = 1 << 20;

struct Close {
  void operator()(gzFile file) const { gzclose_r(file); }
};

// Sequential bytes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next bytes; fewer than requested only at the end.
  virtual absl::StatusOr<size_t> Read(std::span<uint8_t> bytes) = 0;
};

// A file, inflated if it is compressed.
class GzipStream final : public ByteStream {
 public:
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::string& path) {
    CADRE_ASSIGN_OR_RETURN(const RegularFile regular, OpenRegularFile(path));
    // zlib closes the descriptor.
    gzFile file = gzdopen(regular.fd, "rb");
    if (file == nullptr) {
      close(regular.fd);
      return ErrnoStatus(ENOMEM, "open", path);
    }
    gzbuffer(file, kBlockBytes);
    return std::make_unique<GzipStream>(path, file);
  }

  GzipStream(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  absl::StatusOr<size_t> Read(std::span<uint8_t> bytes) override;

 private:
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

absl::StatusOr<size_t> GzipStream::Read(std::span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto want = static_cast<unsigned>(std::min(kBlockBytes, bytes.size() - done));
    errno = 0;
    const int got = gzread(file_.get(), bytes.data() + done, want);
    if (got > 0) {
      done += got;
      continue;
    }
    int error = Z_OK;
    const char* message = gzerror(file_.get(), &error);
    if (error == Z_ERRNO) return ErrnoStatus(errno, "read", path_);
    if (error == Z_BUF_ERROR) {
      return absl::DataLossError(absl::StrCat(path_, ": the gzip file is truncated"));
    }
    if (got < 0 || error < 0) {
      return absl::DataLossError(absl::StrCat(path_, ": the gzip file is damaged: ", message));
    }
    break;
  }
  return done;
}

class MemoryStream final : public ByteStream {
 public:
  explicit MemoryStream(std::span<const std::byte> bytes) : bytes_(bytes) {}

  absl::StatusOr<size_t> Read(std::span<uint8_t> bytes) override {
    const size_t count = std::min(bytes.size(), bytes_.size());
    std::transform(bytes_.begin(), bytes_.begin() + count, bytes.begin(),
                   [](std::byte byte) { return std::to_integer<uint8_t>(byte); });
    bytes_ = bytes_.subspan(count);
    return count;
  }

 private:
  // Unread bytes.
  std::span<const std::byte> bytes_;
};

// Sequential reader of one IDX file.
class IdxReader {
 public:
  static absl::StatusOr<IdxReader> Open(const std::string& path) {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, GzipStream::Open(path));
    return IdxReader(path, std::move(stream));
  }
  IdxReader(std::string name, std::unique_ptr<ByteStream> stream)
      : name_(std::move(name)), stream_(std::move(stream)) {}

  absl::StatusOr<std::vector<int64_t>> ReadHeader();
  absl::StatusOr<size_t> Read(std::span<uint8_t> bytes) { return stream_->Read(bytes); }
  absl::Status ExpectEnd();

  absl::Status Short(int64_t have, absl::string_view of) const {
    return absl::DataLossError(absl::StrCat(name_, ": ends after ", have, " bytes of ", of));
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", what));
  }
  absl::Status CheckMagic(std::span<const uint8_t> magic) const;
  absl::Status CheckSize(const std::vector<int64_t>& dims) const;

  std::string name_;
  std::unique_ptr<ByteStream> stream_;
};

absl::Status IdxReader::CheckMagic(std::span<const uint8_t> magic) const {
  if (magic[0] != 0 || magic[1] != 0) {
    return Wrong(absl::StrFormat("starts with bytes %02x %02x; an IDX file starts with 00 00",
                                 magic[0], magic[1]));
  }
  if (magic[2] != kUnsignedByte) {
    return Wrong(
        absl::StrFormat("has elements of type 0x%02x; only unsigned bytes, 0x%02x, are read",
                        magic[2], kUnsignedByte));
  }
  if (magic[3] < 1 || magic[3] > kMaxIdxDims) {
    return Wrong(absl::StrCat("has ", static_cast<int>(magic[3]), " dimensions; 1 to ", kMaxIdxDims,
                              " are read"));
  }
  return absl::OkStatus();
}

absl::Status IdxReader::CheckSize(const std::vector<int64_t>& dims) const {
  int64_t elements = 1;
  for (const int64_t extent : dims) {
    if (elements != 0 && extent > kMaxIdxElements / elements) {
      return Wrong(absl::StrCat("has [", absl::StrJoin(dims, ", "), "] elements; at most ",
                                kMaxIdxElements, " are read"));
    }
    elements *= extent;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> IdxReader::ReadHeader() {
  std::array<uint8_t, kMagicBytes + kExtentBytes * kMaxIdxDims> bytes{};
  const std::span<uint8_t> magic = std::span(bytes).first(kMagicBytes);
  CADRE_ASSIGN_OR_RETURN(const size_t magic_bytes, Read(magic));
  if (magic_bytes < kMagicBytes) return Short(magic_bytes, "its header");
  CADRE_RETURN_IF_ERROR(CheckMagic(magic));
  const size_t wanted = kExtentBytes * magic[3];
  const std::span<uint8_t> extents = std::span(bytes).subspan(kMagicBytes, wanted);
  CADRE_ASSIGN_OR_RETURN(const size_t extent_bytes, Read(extents));
  if (extent_bytes < wanted) {
    return Short(kMagicBytes + extent_bytes, "its header");
  }
  std::vector<int64_t> dims;
  for (size_t i = 0; i < wanted; i += kExtentBytes) {
    int64_t extent = 0;
    for (size_t b = 0; b < kExtentBytes; ++b) extent = extent << 8 | extents[i + b];
    dims.push_back(extent);
  }
  CADRE_RETURN_IF_ERROR(CheckSize(dims));
  return dims;
}

// Reading beyond the last element also makes zlib verify the checksum of a gzip file.
absl::Status IdxReader::ExpectEnd() {
  uint8_t byte = 0;
  CADRE_ASSIGN_OR_RETURN(const size_t more, Read(std::span(&byte, 1)));
  if (more == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name_, ": has bytes after the last element of its header"));
}

int64_t Elements(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t extent : dims) elements *= extent;
  return elements;
}

// Reads all elements in blocks and stores them in `data` unless it is null.
absl::Status ReadElements(IdxReader& reader, int64_t elements, std::vector<uint8_t>* data) {
  std::vector<uint8_t> block(std::min<int64_t>(kBlockBytes, elements));
  for (int64_t done = 0; done < elements;) {
    const auto want = static_cast<size_t>(std::min<int64_t>(kBlockBytes, elements - done));
    CADRE_ASSIGN_OR_RETURN(const size_t got, reader.Read(std::span(block).first(want)));
    done += got;
    if (got < want) return reader.Short(done, absl::StrCat("the ", elements, " elements"));
    if (data != nullptr) data->insert(data->end(), block.begin(), block.begin() + want);
  }
  return reader.ExpectEnd();
}

absl::StatusOr<IdxArray> ReadArray(IdxReader& reader) {
  IdxArray array;
  CADRE_ASSIGN_OR_RETURN(array.dims, reader.ReadHeader());
  CADRE_RETURN_IF_ERROR(ReadElements(reader, Elements(array.dims), &array.data));
  return array;
}

}  // namespace

absl::StatusOr<IdxArray> ReadIdx(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(IdxReader reader, IdxReader::Open(path));
  return ReadArray(reader);
}

absl::StatusOr<IdxArray> ParseIdx(const std::string& name, std::span<const std::byte> bytes) {
  IdxReader reader(name, std::make_unique<MemoryStream>(bytes));
  return ReadArray(reader);
}

absl::StatusOr<std::vector<int64_t>> ReadIdxDims(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(IdxReader reader, IdxReader::Open(path));
  return reader.ReadHeader();
}

absl::StatusOr<std::vector<int64_t>> CheckIdx(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(IdxReader reader, IdxReader::Open(path));
  CADRE_ASSIGN_OR_RETURN(std::vector<int64_t> dims, reader.ReadHeader());
  CADRE_RETURN_IF_ERROR(ReadElements(reader, Elements(dims), nullptr));
  return dims;
}

}  // namespace cadre
