// A tar archive is a sequence of blocks of 512 bytes: a header for each member, then its contents,
// filled up to whole blocks; two blocks of zeros end it. Names of more than 100 bytes and sizes of
// 8 GiB and more do not fit the header. POSIX ("pax") writes an extra entry with records before the
// member, GNU an entry with the name, or a binary size. The scanner follows all of these and skips
// contents without reading them.
//
// Whether a member has contents depends on its type. Those of POSIX other than files have none,
// whatever the size in their header; entries of vendors have as many as their header states, such
// as the list of names that GNU tar writes for a folder of an incremental backup. What follows the
// end of an archive is zeros or another archive, because members that are not read would be
// omitted without notice.
#include "worker/data/tar.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_format.h"
#include "base/status.h"

namespace cadre {
namespace {

// Fields of a header block.
using Field = Interval;
constexpr Field kName{0, 100};
constexpr Field kSize{124, 136};
constexpr Field kChecksum{148, 156};
constexpr Field kType{156, 157};
constexpr Field kLinkName{157, 257};
constexpr Field kMagic{257, 262};
constexpr Field kVersion{263, 265};
constexpr Field kPrefix{345, 500};

// Number of blocks that are read together while zeros are skipped.
constexpr int64_t kZeroBlocks = 20;

using Block = std::array<std::byte, kTarBlockBytes>;

// The field's bytes up to the first zero.
absl::string_view Text(const Block& block, const Field& field) {
  const absl::string_view whole(reinterpret_cast<const char*>(block.data()) + field.begin,
                                field.size());
  return whole.substr(0, whole.find('\0'));
}

// Octal digits between optional spaces; or, if the highest bit is set, a binary number.
std::optional<int64_t> Number(const Block& block, const Field& field) {
  const auto bytes = std::span(block).subspan(field.begin, field.size());
  int64_t value = 0;
  if ((bytes[0] & std::byte{0x80}) != std::byte{0}) {
    if (bytes[0] != std::byte{0x80}) return std::nullopt;  // negative, or beyond 88 bits
    for (const std::byte byte : bytes.subspan(1)) {
      if (value > INT64_MAX >> 8) return std::nullopt;
      value = value << 8 | std::to_integer<int64_t>(byte);
    }
    return value;
  }
  absl::string_view digits = Text(block, field);
  while (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  while (!digits.empty() && digits.back() == ' ') digits.remove_suffix(1);
  for (const char digit : digits) {
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value << 3 | (digit - '0');  // at most 12 digits: 36 bits
  }
  return value;
}

// The sum of the block's bytes; the checksum's own field counts as spaces.
int64_t Checksum(const Block& block) {
  int64_t sum = 0;
  for (int64_t i = 0; i < kTarBlockBytes; ++i) {
    sum += kChecksum.contains(i) ? ' ' : std::to_integer<int64_t>(block[i]);
  }
  return sum;
}

bool IsZero(const Block& block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Only ustar and pax headers have a prefix; GNU's old format uses the field for something else.
std::string FullName(const Block& block) {
  const absl::string_view name = Text(block, kName);
  const absl::string_view prefix = Text(block, kPrefix);
  const bool has_prefix = Text(block, kMagic) == "ustar" && Text(block, kVersion) == "00";
  if (!has_prefix || prefix.empty()) return std::string(name);
  return absl::StrCat(prefix, "/", name);
}

// Types of entries that describe the next member, or all that follow.
constexpr char kPaxNext = 'x';
constexpr char kPaxOfSolaris = 'X';
constexpr char kPaxGlobal = 'g';
constexpr char kLongName = 'L';
constexpr char kLongLink = 'K';
// Types whose contents would be misread.
constexpr char kSparse = 'S';
constexpr char kContinuedFromOtherVolume = 'M';
constexpr char kOldLongNames = 'N';

bool IsDescription(char type) {
  return type == kPaxNext || type == kPaxOfSolaris || type == kPaxGlobal || type == kLongName ||
         type == kLongLink;
}

TarMember::Kind KindOf(char type) {
  switch (type) {
    case '0':
    case '\0':
    case '7':
      return TarMember::Kind::kFile;
    case '1':
      return TarMember::Kind::kHardLink;
    case '2':
      return TarMember::Kind::kSymbolicLink;
    case '5':
    case 'D':
      return TarMember::Kind::kFolder;
    default:
      return TarMember::Kind::kOther;
  }
}

// Links, devices, folders and pipes of POSIX.
bool HasContents(char type) { return type < '1' || type > '6'; }

}  // namespace

struct TarScanner::Header {
  std::string name;
  std::string target;
  char type = '0';
  int64_t size = 0;
};

std::string TarScanner::Position() const {
  return absl::StrCat(source_.name(), ": at offset ", offset_, " of ", source_.size(), ": ");
}

absl::Status TarScanner::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(Position(), what));
}

absl::Status TarScanner::Unsupported(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Position(), what));
}

// The checksum distinguishes damage from other kinds of files: at the start of a file, a wrong one
// means that the file is not a tar archive.
absl::StatusOr<std::optional<TarScanner::Header>> TarScanner::ReadHeader() const {
  if (source_.size() - offset_ < kTarBlockBytes) {
    CADRE_ASSIGN_OR_RETURN(const std::string rest, source_.ReadText({offset_, source_.size()}));
    if (const std::string note = FormatNote(rest, kTarFormat); offset_ == 0 && !note.empty()) {
      return Unsupported(absl::StrCat("this is not a tar archive", note));
    }
    return Damaged("the tar archive has no end-of-archive block; it seems truncated");
  }
  Block block{};
  CADRE_RETURN_IF_ERROR(source_.ReadAt(offset_, block));
  if (IsZero(block)) return std::nullopt;
  const std::optional<int64_t> checksum = Number(block, kChecksum);
  if (!checksum || *checksum != Checksum(block)) {
    const absl::string_view first(reinterpret_cast<const char*>(block.data()), block.size());
    if (offset_ == 0) {
      return Unsupported(
          absl::StrCat("this is not an uncompressed tar archive", FormatNote(first, kTarFormat)));
    }
    return Damaged("a tar header is damaged: its checksum is wrong");
  }
  const std::optional<int64_t> size = Number(block, kSize);
  if (!size) return Damaged("a tar header is damaged: its size is not a number");
  return Header{.name = FullName(block),
                .target = std::string(Text(block, kLinkName)),
                .type = std::to_integer<char>(block[kType.begin]),
                .size = *size};
}

// Reads in large parts, because the rest of the file may be long.
absl::StatusOr<bool> TarScanner::SkipZeros() {
  std::vector<std::byte> bytes(kZeroBlocks * kTarBlockBytes);
  while (offset_ < source_.size()) {
    const auto part =
        std::span(bytes).first(std::min<int64_t>(bytes.size(), source_.size() - offset_));
    CADRE_RETURN_IF_ERROR(source_.ReadAt(offset_, part));
    const int64_t zeros =
        std::find_if(part.begin(), part.end(), [](std::byte b) { return b != std::byte{0}; }) -
        part.begin();
    if (zeros < std::ssize(part)) {
      offset_ += zeros / kTarBlockBytes * kTarBlockBytes;
      return true;
    }
    offset_ += zeros;
  }
  return false;
}

absl::Status TarScanner::Skip(int64_t size, const std::string& name) {
  const int64_t left = source_.size() - offset_ - kTarBlockBytes;
  if (size > left) {
    return Damaged(absl::StrCat("member ", name, " has ", size, " bytes, but only ", left,
                                " follow; the tar archive seems truncated"));
  }
  // The padding of the last block may be missing.
  const int64_t blocks = (size + kTarBlockBytes - 1) / kTarBlockBytes;
  offset_ = std::min(offset_ + (1 + blocks) * kTarBlockBytes, source_.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> TarScanner::ReadDescription(const Header& header) const {
  if (header.size > kMaxTarHeaderBytes) {
    return Unsupported(absl::StrCat("a name or pax header has ", header.size, " bytes; at most ",
                                    kMaxTarHeaderBytes, " are supported"));
  }
  const int64_t begin = offset_ + kTarBlockBytes;
  return source_.ReadText({begin, begin + header.size});
}

// Records are "LENGTH KEY=VALUE\n"; the length counts the whole record, including itself. Unknown
// keys are ignored, as the standard requires, except for those of sparse files, whose contents
// would be misread; their own name is that of their contents.
absl::Status TarScanner::ReadPax(const std::string& records, Extended& extended) const {
  for (absl::string_view rest = records; !rest.empty() && rest.front() != '\0';) {
    const size_t space = rest.find(' ');
    int64_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, space), &length) ||
        length > std::ssize(rest) || length <= 0 || space + 1 >= static_cast<size_t>(length) ||
        rest[length - 1] != '\n') {
      return Damaged("a pax header is damaged: a record's length is wrong");
    }
    const absl::string_view record = rest.substr(space + 1, length - space - 2);
    rest.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Damaged("a pax header is damaged: no '='");
    const absl::string_view key = record.substr(0, equals);
    const absl::string_view value = record.substr(equals + 1);
    if (key == "path") extended.name = std::string(value);
    if (key == "linkpath") extended.target = std::string(value);
    if (key == "GNU.sparse.name") extended.name = std::string(value);
    if (key.substr(0, 11) == "GNU.sparse.") extended.sparse = true;
    if (key != "size") continue;
    int64_t size = 0;
    if (!absl::SimpleAtoi(value, &size) || size < 0) {
      return Damaged("a pax header is damaged: its size is not a number");
    }
    extended.size = size;
  }
  return absl::OkStatus();
}

// Records for all members that follow are attributes of the archive, such as a comment. A name or
// size for all of them would be a mistake.
absl::Status TarScanner::CheckGlobalPax(const std::string& records) const {
  Extended extended;
  CADRE_RETURN_IF_ERROR(ReadPax(records, extended));
  if (extended.sparse) return Unsupported("sparse files are not supported");
  if (!extended.name && !extended.target && !extended.size) return absl::OkStatus();
  return Unsupported("a pax header for all members has a name or a size");
}

absl::Status TarScanner::ReadExtended(const Header& header, Extended& extended) const {
  CADRE_ASSIGN_OR_RETURN(std::string text, ReadDescription(header));
  switch (header.type) {
    case kPaxNext:
    case kPaxOfSolaris:
      return ReadPax(text, extended);
    case kPaxGlobal:
      return CheckGlobalPax(text);
    case kLongName:
      extended.name = text.substr(0, text.find('\0'));
      return absl::OkStatus();
    default:
      extended.target = text.substr(0, text.find('\0'));
      return absl::OkStatus();
  }
}

// Entries that describe the next member are collected until that member comes.
absl::StatusOr<std::optional<TarMember>> TarScanner::Next() {
  int64_t first = offset_;
  Extended extended;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const std::optional<Header> header, ReadHeader());
    if (!header && offset_ != first) {
      return Damaged("the tar archive ends after a header that describes a next member");
    }
    if (!header) {
      CADRE_ASSIGN_OR_RETURN(const bool more, SkipZeros());
      if (!more) return std::nullopt;
      first = offset_;
      if (!ReadHeader().ok()) {
        return Damaged("bytes that are no tar archive follow the end of the archive");
      }
      continue;
    }
    if (!IsDescription(header->type) && (header->type == kSparse || extended.sparse)) {
      return Unsupported(absl::StrCat("member ", extended.name.value_or(header->name),
                                      " is a sparse file, which is not supported; create the "
                                      "archive without the option -S of tar"));
    }
    if (header->type == kContinuedFromOtherVolume || header->type == kOldLongNames) {
      return Unsupported(absl::StrCat("entries of type '", std::string(1, header->type),
                                      "' (parts of other volumes, old lists of long names) are "
                                      "not supported"));
    }
    if (IsDescription(header->type)) {
      CADRE_RETURN_IF_ERROR(ReadExtended(*header, extended));
      CADRE_RETURN_IF_ERROR(Skip(header->size, header->name));
      continue;
    }
    TarMember member;
    member.name = extended.name.value_or(header->name);
    member.kind = KindOf(header->type);
    // Before POSIX, folders were files with such a name.
    if (absl::EndsWith(member.name, "/")) member.kind = TarMember::Kind::kFolder;
    if (member.is_link()) member.target = extended.target.value_or(header->target);
    member.header = first;
    member.begin = offset_ + kTarBlockBytes;
    if (HasContents(header->type)) member.size = extended.size.value_or(header->size);
    CADRE_RETURN_IF_ERROR(Skip(member.size, member.name));
    return member;
  }
}

}  // namespace cadre
