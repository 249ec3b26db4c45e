// A file is not trusted, since its header may state any size. Elements are therefore read in
// blocks, so that memory grows with the data that exists, and the product of the extents is checked
// before any allocation. A file must end with its last element; the attempt to read beyond it also
// makes zlib verify the checksum of a compressed file.
#include "model/formats/idx.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr uint8_t kUnsignedByte = 8;
constexpr size_t kMagicBytes = 4;
constexpr size_t kExtentBytes = 4;
// Size of reads and of zlib's buffer.
constexpr size_t kBlockBytes = 1 << 20;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};

// Sequential reader of one IDX file. zlib reads uncompressed files unchanged.
class IdxReader {
 public:
  static absl::StatusOr<IdxReader> Open(const std::string& path, const RootedFiles& files) {
    CADRE_ASSIGN_OR_RETURN(const RegularFile regular, OpenRegularFile(path, files));
    // zlib closes the descriptor.
    gzFile file = gzdopen(regular.fd, "rb");
    if (file == nullptr) {
      close(regular.fd);
      return ErrnoStatus(ENOMEM, "open", path);
    }
    gzbuffer(file, kBlockBytes);
    return IdxReader(path, file);
  }

  absl::StatusOr<std::vector<int64_t>> ReadHeader() {
    std::array<uint8_t, kMagicBytes + kExtentBytes * kMaxIdxDims> bytes{};
    const std::span<uint8_t> magic = std::span(bytes).first(kMagicBytes);
    CADRE_ASSIGN_OR_RETURN(const size_t magic_bytes, Read(magic));
    if (magic_bytes < kMagicBytes) return Short(magic_bytes, "its header");
    if (magic[0] != 0 || magic[1] != 0) return NotIdx(magic);
    CADRE_RETURN_IF_ERROR(CheckMagic(magic));
    const size_t size = kExtentBytes * magic[3];
    const std::span<uint8_t> extents = std::span(bytes).subspan(kMagicBytes, size);
    CADRE_ASSIGN_OR_RETURN(const size_t extent_bytes, Read(extents));
    if (extent_bytes < size) {
      return Short(kMagicBytes + extent_bytes, "its header");
    }
    std::vector<int64_t> dims;
    for (size_t i = 0; i < size; i += kExtentBytes) {
      int64_t extent = 0;
      // Big-endian.
      for (size_t b = 0; b < kExtentBytes; ++b) extent = extent << 8 | extents[i + b];
      dims.push_back(extent);
    }
    CADRE_RETURN_IF_ERROR(CheckSize(dims));
    return dims;
  }

  // The next bytes; fewer than requested only at the end.
  // zlib reports a truncated file as Z_BUF_ERROR, and damage of the stream with other codes.
  absl::StatusOr<size_t> Read(std::span<uint8_t> bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      errno = 0;
      const int n =
          gzread(file_.get(), bytes.data() + done, std::min(kBlockBytes, bytes.size() - done));
      if (n > 0) {
        done += n;
        continue;
      }
      int error = Z_OK;
      const char* message = gzerror(file_.get(), &error);
      if (error == Z_ERRNO) return ErrnoStatus(errno, "read", path_);
      if (error == Z_BUF_ERROR) {
        return absl::DataLossError(absl::StrCat(path_, ": the gzip file is truncated"));
      }
      if (n < 0 || error < 0) {
        return absl::DataLossError(absl::StrCat(path_, ": the gzip file is damaged: ", message));
      }
      break;
    }
    return done;
  }

  absl::Status ExpectEnd() {
    uint8_t byte = 0;
    CADRE_ASSIGN_OR_RETURN(const size_t more, Read(std::span(&byte, 1)));
    if (more == 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(path_, ": has bytes after the last element of its header"));
  }

  absl::Status Short(int64_t have, absl::string_view total) const {
    return absl::DataLossError(absl::StrCat(path_, ": ends after ", have, " bytes of ", total));
  }

 private:
  IdxReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }
  // Messages do not quote the file: it may be one that the reader of the message may not read.
  absl::Status NotIdx(std::span<const uint8_t> magic) {
    std::vector<uint8_t> first(kFormatBytes);
    std::copy(magic.begin(), magic.end(), first.begin());
    const absl::StatusOr<size_t> more = Read(std::span(first).subspan(magic.size()));
    first.resize(magic.size() + (more.ok() ? *more : 0));
    return Invalid(absl::StrCat(
        "is not an IDX file, which starts with two zero bytes",
        FormatNote({reinterpret_cast<const char*>(first.data()), first.size()}, kIdxFormat)));
  }
  absl::Status CheckMagic(std::span<const uint8_t> magic) const {
    if (magic[2] != kUnsignedByte) {
      return Invalid("has elements of another type than unsigned bytes, which alone are read");
    }
    if (magic[3] < 1 || magic[3] > kMaxIdxDims) {
      return Invalid(
          absl::StrCat("has no or too many dimensions; 1 to ", kMaxIdxDims, " are read"));
    }
    return absl::OkStatus();
  }

  // Divides instead of multiplying, since the product of four 32-bit extents can overflow 64 bits.
  absl::Status CheckSize(const std::vector<int64_t>& dims) const {
    int64_t elements = 1;
    for (const int64_t extent : dims) {
      if (elements != 0 && extent > kMaxIdxElements / elements) {
        return Invalid(absl::StrCat("has [", absl::StrJoin(dims, ", "), "] elements; at most ",
                                    kMaxIdxElements, " are read"));
      }
      elements *= extent;
    }
    return absl::OkStatus();
  }

  std::string path_;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
};

int64_t Elements(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t extent : dims) elements *= extent;
  return elements;
}

// Reads all elements in blocks and stores them in `data` unless it is null.
absl::Status ReadElements(IdxReader& reader, int64_t elements, std::vector<uint8_t>* data) {
  std::vector<uint8_t> block(std::min<int64_t>(kBlockBytes, elements));
  for (int64_t done = 0; done < elements;) {
    const size_t size = std::min<int64_t>(kBlockBytes, elements - done);
    CADRE_ASSIGN_OR_RETURN(const size_t read, reader.Read(std::span(block).first(size)));
    done += read;
    if (read < size) return reader.Short(done, absl::StrCat("the ", elements, " elements"));
    if (data != nullptr) data->insert(data->end(), block.begin(), block.begin() + size);
  }
  return reader.ExpectEnd();
}

}  // namespace

absl::StatusOr<IdxArray> ReadIdx(const std::string& path, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(IdxReader reader, IdxReader::Open(path, files));
  IdxArray array;
  CADRE_ASSIGN_OR_RETURN(array.dims, reader.ReadHeader());
  CADRE_RETURN_IF_ERROR(ReadElements(reader, Elements(array.dims), &array.data));
  return array;
}

absl::StatusOr<std::vector<int64_t>> CheckIdx(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(IdxReader reader, IdxReader::Open(path, RootedFiles::Unrestricted()));
  CADRE_ASSIGN_OR_RETURN(std::vector<int64_t> dims, reader.ReadHeader());
  CADRE_RETURN_IF_ERROR(ReadElements(reader, Elements(dims), nullptr));
  return dims;
}

}  // namespace cadre
