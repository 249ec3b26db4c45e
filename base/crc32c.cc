#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace cadre {

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  // The library takes the length as an int, so longer input is passed in pieces of 1 GiB.
  constexpr size_t kPiece = size_t{1} << 30;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const absl::string_view piece = bytes.substr(at, kPiece);
    // The library takes a non-const pointer, but does not write.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(piece.data()));
    crc = crc32_iscsi(data, std::ssize(piece), crc);
  }
  return ~crc;
}

}  // namespace cadre
