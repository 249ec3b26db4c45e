// Lists the members of a tar archive by reading headers only: ustar, with long names, targets of
// links and sizes as pax headers or GNU entries. Archives that follow one another in one file are
// read as one.
//
//   TarScanner scanner(source);
//   while (true) {
//     CADRE_ASSIGN_OR_RETURN(std::optional<TarMember> member, scanner.Next());
//     if (!member) break;
//   }
//
// Archives may be hostile: sizes are checked against the size of the archive, and memory is bounded
// by kMaxTarHeaderBytes.
//
// Thread-compatible. The source is borrowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/byte_source.h"

namespace cadre {

inline constexpr int64_t kTarBlockBytes = 512;
// Limit of one long name or one set of pax records.
inline constexpr int64_t kMaxTarHeaderBytes = 64 << 10;

struct TarMember {
  enum class Kind {
    kFile,
    // The target is the name of another member; for a symbolic link, relative to its own folder.
    kHardLink,
    kSymbolicLink,
    kFolder,
    // Devices, pipes, volume labels, entries of vendors.
    kOther,
  };

  bool is_file() const { return kind == Kind::kFile; }
  bool is_link() const { return kind == Kind::kHardLink || kind == Kind::kSymbolicLink; }

  std::string name;
  Kind kind = Kind::kFile;
  // The target of a link; otherwise empty.
  std::string target;
  // Offset of its first header; a TarScanner that starts there returns this member first.
  int64_t header = 0;
  // Offset and size of its contents. Links have none.
  int64_t begin = 0;
  int64_t size = 0;
};

class TarScanner {
 public:
  explicit TarScanner(const ByteSource& source, int64_t offset = 0)
      : source_(source), offset_(offset) {}

  // The next member; nothing at the end of the file.
  // Errors, naming archive, offset and size: DataLoss for a truncated or damaged archive;
  // InvalidArgument for a file that is not a tar archive, or uses unsupported features (sparse
  // files, parts of a member in another volume).
  absl::StatusOr<std::optional<TarMember>> Next();

 private:
  // Properties of the next member that long-name and pax entries override.
  struct Extended {
    std::optional<std::string> name;
    std::optional<std::string> target;
    std::optional<int64_t> size;
    // The contents are only the parts of the file that are not zeros.
    bool sparse = false;
  };
  struct Header;

  // Moves past the blocks of zeros that end an archive. False at the end of the file.
  absl::StatusOr<bool> SkipZeros();
  absl::StatusOr<std::optional<Header>> ReadHeader() const;
  // Reads an entry that describes the next member.
  absl::Status ReadExtended(const Header& header, Extended& extended) const;
  // The contents of an entry that describes the next member.
  absl::StatusOr<std::string> ReadDescription(const Header& header) const;
  absl::Status ReadPax(const std::string& records, Extended& extended) const;
  absl::Status CheckGlobalPax(const std::string& records) const;
  // Skips the header and `size` bytes of contents.
  absl::Status Skip(int64_t size, const std::string& name);

  absl::Status Damaged(absl::string_view what) const;
  absl::Status Unsupported(absl::string_view what) const;
  std::string Position() const;

  const ByteSource& source_;
  int64_t offset_ = 0;
};

}  // namespace cadre
