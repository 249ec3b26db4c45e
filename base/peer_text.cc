// Escaping decodes the text: whether a byte of 0x80 or above is a control character depends on the
// code point that it belongs to.
#include "base/peer_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace cadre {
namespace {

bool IsControl(uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0) ||
         // Marks and overrides of direction, line and paragraph separators.
         point == 0x61c || point == 0x200e || point == 0x200f ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
         point == 0xfeff;
}

// Moves the first character of `text` to the end of `out`, escaped if necessary. A first byte that
// does not begin a valid UTF-8 character is moved alone.
void MoveCharacter(absl::string_view& text, LineBreaks line_breaks, std::string& out) {
  uint32_t point = 0;
  const size_t size = FirstCodePoint(text, &point);
  const absl::string_view bytes = text.substr(0, std::max<size_t>(1, size));
  text.remove_prefix(bytes.size());
  if (bytes == "\n") {
    out += line_breaks == LineBreaks::kKeep ? "\n" : "\\n";
  } else if (size > 0 && !IsControl(point)) {
    absl::StrAppend(&out, bytes);
  } else {
    for (const unsigned char byte : bytes) absl::StrAppendFormat(&out, "\\x%02x", byte);
  }
}

}  // namespace

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  const bool legal =
      !name.empty() && name.size() <= kMaxName &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' || c == '-';
      });
  if (legal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " '", Escaped(name.substr(0, kMaxName)), name.size() > kMaxName ? "..." : "",
      "' is not a name of 1 to ", kMaxName, " characters of [a-z0-9._-]"));
}

absl::Status CheckPeerLine(absl::string_view what, absl::string_view line) {
  if (line.size() > kMaxPeerLine) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", line.size(), " bytes; at most ", kMaxPeerLine, " are allowed"));
  }
  if (std::string escaped = Escaped(line); escaped != line) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " '", escaped, "' has characters that cannot be printed"));
  }
  return absl::OkStatus();
}

std::string Escaped(absl::string_view text, LineBreaks line_breaks) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) MoveCharacter(text, line_breaks, out);
  return out;
}

std::string ShortReason(absl::string_view reason) {
  const std::string suffix = absl::StrCat("... (", reason.size(), " bytes)");
  std::string out;
  // Length of the longest prefix of `out` that still leaves room for the suffix.
  size_t kept = 0;
  for (absl::string_view rest = reason; !rest.empty();) {
    MoveCharacter(rest, LineBreaks::kEscape, out);
    if (out.size() + suffix.size() <= kMaxReason) kept = out.size();
    if (out.size() > kMaxReason) return out.substr(0, kept) + suffix;
  }
  return out;
}

}  // namespace cadre
