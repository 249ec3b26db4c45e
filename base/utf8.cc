// Decodes every code point and checks it against the smallest one that needs as many bytes, instead
// of the table of byte ranges of the Unicode standard (table 3-7), which describes the same set.
#include "base/utf8.h"

namespace cadre {

size_t FirstCodePoint(absl::string_view bytes, uint32_t* point) {
  if (bytes.empty()) return 0;
  const uint8_t lead = bytes[0];
  *point = lead;
  if (lead < 0x80) return 1;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
  if (more == 0 || lead > 0xf4) return 0;
  *point = lead & (0x3fU >> more);
  for (int n = 1; n <= more; ++n) {
    if (static_cast<size_t>(n) == bytes.size() || (bytes[n] & 0xc0) != 0x80) return 0;
    *point = *point << 6 | (bytes[n] & 0x3f);
  }
  // The smallest code point that needs this number of bytes.
  const uint32_t min_point = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
  const bool surrogate = *point >= 0xd800 && *point <= 0xdfff;
  if (*point < min_point || *point > 0x10ffff || surrogate) return 0;
  return more + 1;
}

bool IsUtf8(absl::string_view bytes) {
  uint32_t point = 0;
  while (!bytes.empty()) {
    const size_t size = FirstCodePoint(bytes, &point);
    if (size == 0) return false;
    bytes.remove_prefix(size);
  }
  return true;
}

}  // namespace cadre
