#include "model/utf8.h"

#include <cstddef>
#include <cstdint>

namespace cadre {

bool IsUtf8(absl::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    const auto lead = static_cast<uint8_t>(bytes[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (more == 0 || lead > 0xf4) return false;
    uint32_t point = lead & (0x3fU >> more);
    for (int n = 0; n < more; ++n, ++i) {
      if (i == bytes.size() || (static_cast<uint8_t>(bytes[i]) & 0xc0) != 0x80) return false;
      point = point << 6 | (static_cast<uint8_t>(bytes[i]) & 0x3f);
    }
    // The first code point that needs so many bytes.
    const uint32_t least = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
    const bool surrogate = point >= 0xd800 && point <= 0xdfff;
    if (point < least || point > 0x10ffff || surrogate) return false;
  }
  return true;
}

}  // namespace cadre
