#include "worker/data/tar.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace cadre {
namespace {

// Fields of a header block: where each begins and how long it is.
struct Field {
  size_t begin;
  size_t size;
};
constexpr Field kName{0, 100};
constexpr Field kSize{124, 12};
constexpr Field kChecksum{148, 8};
constexpr Field kType{156, 1};
constexpr Field kMagic{257, 5};
constexpr Field kVersion{263, 2};
constexpr Field kPrefix{345, 155};

using Block = std::array<std::byte, kTarBlockBytes>;

// The field's bytes up to the first zero.
absl::string_view Text(const Block& block, const Field& field) {
  const absl::string_view whole(reinterpret_cast<const char*>(block.data()) + field.begin,
                                field.size);
  return whole.substr(0, whole.find('\0'));
}

// Octal digits, with spaces around them; or, with the highest bit set, a binary number.
std::optional<int64_t> Number(const Block& block, const Field& field) {
  const std::span bytes(block.data() + field.begin, field.size);
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

// The sum of the block's bytes, its own field counted as spaces.
int64_t Checksum(const Block& block) {
  int64_t sum = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    const bool own = i >= kChecksum.begin && i < kChecksum.begin + kChecksum.size;
    sum += own ? ' ' : std::to_integer<int64_t>(block[i]);
  }
  return sum;
}

bool IsZero(const Block& block) {
  return std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The prefix of ustar and pax headers; GNU's old format keeps other things there.
std::string FullName(const Block& block) {
  const absl::string_view name = Text(block, kName);
  const absl::string_view prefix = Text(block, kPrefix);
  const bool has_prefix = Text(block, kMagic) == "ustar" && Text(block, kVersion) == "00";
  if (!has_prefix || prefix.empty()) return std::string(name);
  return absl::StrCat(prefix, "/", name);
}

// Types of entries that describe the next one, or all that follow.
constexpr char kPaxNext = 'x';
constexpr char kPaxGlobal = 'g';
constexpr char kLongName = 'L';
constexpr char kLongLink = 'K';
constexpr char kSparse = 'S';

bool IsFileType(char type) { return type == '0' || type == '\0' || type == '7'; }
bool IsDescription(char type) {
  return type == kPaxNext || type == kPaxGlobal || type == kLongName || type == kLongLink;
}

}  // namespace

struct TarScanner::Header {
  std::string name;
  char type = '0';
  int64_t size = 0;
};

std::string TarScanner::Place() const {
  return absl::StrCat(source_.name(), ": at offset ", offset_, " of ", source_.size(), ": ");
}

absl::Status TarScanner::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(Place(), what));
}

absl::Status TarScanner::Unread(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Place(), what));
}

absl::StatusOr<std::optional<TarScanner::Header>> TarScanner::ReadHeader() const {
  if (source_.size() - offset_ < kTarBlockBytes) {
    return Damaged("the tar archive ends without its mark of the end; it seems cut short");
  }
  Block block{};
  CADRE_RETURN_IF_ERROR(source_.ReadAt(offset_, block));
  if (IsZero(block)) return std::nullopt;
  const std::optional<int64_t> checksum = Number(block, kChecksum);
  if (!checksum || *checksum != Checksum(block)) {
    if (offset_ == 0) return Unread("this is no tar archive (plain; not compressed)");
    return Damaged("a tar header is damaged: its checksum is wrong");
  }
  const std::optional<int64_t> size = Number(block, kSize);
  if (!size) return Damaged("a tar header is damaged: its size is no number");
  return Header{
      .name = FullName(block), .type = std::to_integer<char>(block[kType.begin]), .size = *size};
}

absl::Status TarScanner::Skip(int64_t size, const std::string& name) {
  const int64_t left = source_.size() - offset_ - kTarBlockBytes;
  if (size > left) {
    return Damaged(absl::StrCat("member ", name, " has ", size, " bytes, but only ", left,
                                " follow; the tar archive seems cut short"));
  }
  // Contents are filled up to whole blocks; the last block may be missing its filling.
  const int64_t blocks = (size + kTarBlockBytes - 1) / kTarBlockBytes;
  offset_ = std::min(offset_ + (1 + blocks) * kTarBlockBytes, source_.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> TarScanner::ReadDescription(const Header& header) const {
  if (header.size > kMaxTarHeaderBytes) {
    return Unread(absl::StrCat("a name or pax header has ", header.size, " bytes; at most ",
                               kMaxTarHeaderBytes, " are read"));
  }
  std::string text(header.size, '\0');
  CADRE_RETURN_IF_ERROR(source_.ReadAt(
      offset_ + kTarBlockBytes, std::as_writable_bytes(std::span(text.data(), text.size()))));
  return text;
}

// Records are "LENGTH KEY=VALUE\n", the length counting the whole record.
absl::Status TarScanner::ReadPax(const std::string& records, Extended& extended) const {
  for (absl::string_view rest = records; !rest.empty() && rest.front() != '\0';) {
    const size_t space = rest.find(' ');
    int64_t length = 0;
    if (space == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, space), &length) ||
        length <= static_cast<int64_t>(space) + 1 || length > std::ssize(rest) ||
        rest[static_cast<size_t>(length) - 1] != '\n') {
      return Damaged("a pax header is damaged: a record's length is wrong");
    }
    const auto end = static_cast<size_t>(length);
    const absl::string_view record = rest.substr(space + 1, end - space - 2);
    rest.remove_prefix(end);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Damaged("a pax header is damaged: no '='");
    const absl::string_view key = record.substr(0, equals);
    const absl::string_view value = record.substr(equals + 1);
    if (key == "path") extended.name = std::string(value);
    if (key.substr(0, 11) == "GNU.sparse.") return Unread("sparse files are not read");
    if (key != "size") continue;
    int64_t size = 0;
    if (!absl::SimpleAtoi(value, &size) || size < 0) {
      return Damaged("a pax header is damaged: its size is no number");
    }
    extended.size = size;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TarMember>> TarScanner::Next() {
  const int64_t first = offset_;
  Extended extended;
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const std::optional<Header> header, ReadHeader());
    if (!header) {
      if (offset_ != first) return Damaged("the tar archive ends after a header for a next member");
      return std::nullopt;
    }
    if (header->type == kSparse) return Unread("sparse files are not read");
    if (IsDescription(header->type)) {
      CADRE_ASSIGN_OR_RETURN(std::string text, ReadDescription(*header));
      if (header->type == kPaxNext) CADRE_RETURN_IF_ERROR(ReadPax(text, extended));
      if (header->type == kLongName) extended.name = text.substr(0, text.find('\0'));
      CADRE_RETURN_IF_ERROR(Skip(header->size, header->name));
      continue;
    }
    TarMember member;
    member.name = extended.name.value_or(header->name);
    member.is_file = IsFileType(header->type);
    member.header = first;
    member.begin = offset_ + kTarBlockBytes;
    // Links may tell the size of what they point at; they have no contents themselves.
    member.size = member.is_file ? extended.size.value_or(header->size) : 0;
    CADRE_RETURN_IF_ERROR(Skip(member.size, member.name));
    return member;
  }
}

}  // namespace cadre
