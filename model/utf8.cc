// Decodes every code point and checks it against the smallest one that needs as many bytes, instead
// of the table of byte ranges of the Unicode standard (table 3-7), which describes the same set.
#include "model/utf8.h"

#include <cstddef>
#include <cstdint>

namespace cadre {

bool IsUtf8(absl::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const uint8_t lead = bytes[i++];
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (more == 0 || lead > 0xf4) return false;
    uint32_t point = lead & (0x3fU >> more);
    for (int n = 0; n < more; ++n, ++i) {
      if (i == bytes.size() || (bytes[i] & 0xc0) != 0x80) return false;
      point = point << 6 | (bytes[i] & 0x3f);
    }
    // The smallest code point that needs this number of bytes.
    const uint32_t min_point = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
    const bool surrogate = point >= 0xd800 && point <= 0xdfff;
    if (point < min_point || point > 0x10ffff || surrogate) return false;
  }
  return true;
}

}  // namespace cadre
