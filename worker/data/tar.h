// Lists the members of a tar archive by reading headers only: ustar, with long names and sizes as
// pax headers or GNU entries.
//
//   TarScanner scanner(source);
//   while (true) {
//     CADRE_ASSIGN_OR_RETURN(std::optional<TarMember> member, scanner.Next());
//     if (!member) break;
//   }
//
// Archives may be hostile: nothing is believed that the archive's size contradicts, and memory is
// bounded by kMaxTarHeaderBytes.
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
// Of one long name or one set of pax records.
inline constexpr int64_t kMaxTarHeaderBytes = 64 << 10;

struct TarMember {
  std::string name;
  // A file with contents; else a folder, a link or a device.
  bool is_file = false;
  // Where its first header begins, which ScanFrom takes.
  int64_t header = 0;
  // Where its contents begin, and how many bytes they are.
  int64_t begin = 0;
  int64_t size = 0;
};

class TarScanner {
 public:
  explicit TarScanner(const ByteSource& source, int64_t offset = 0)
      : source_(source), offset_(offset) {}

  // The next member; nothing at the archive's end.
  // Errors, naming archive, offset and size: DataLoss for an archive that is cut short or damaged,
  // InvalidArgument for what is no tar archive or uses what we do not read (sparse files).
  absl::StatusOr<std::optional<TarMember>> Next();

 private:
  // What long-name and pax entries say about the member that follows them.
  struct Extended {
    std::optional<std::string> name;
    std::optional<int64_t> size;
  };
  struct Header;

  absl::StatusOr<std::optional<Header>> ReadHeader() const;
  // The contents of an entry that describes the next one.
  absl::StatusOr<std::string> ReadDescription(const Header& header) const;
  absl::Status ReadPax(const std::string& records, Extended& extended) const;
  // Past the header and `size` bytes of contents.
  absl::Status Skip(int64_t size, const std::string& name);

  absl::Status Damaged(absl::string_view what) const;
  absl::Status Unread(absl::string_view what) const;
  std::string Place() const;

  const ByteSource& source_;
  int64_t offset_ = 0;
};

}  // namespace cadre
