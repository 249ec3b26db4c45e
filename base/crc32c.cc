// A CRC is the remainder of a polynomial over the field of two elements: the first bit of a text is
// the coefficient of the highest power. n zero bytes after a text multiply it by x^(8 n), and the
// remainder of a sum is the sum of the remainders; so a part that n bytes follow has the share
// crc * x^(8 n). The inversions of CRC32C before the first bit and after the last cancel out, as
// those of a part that is not the last are multiplied along with it.
#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace cadre {
namespace {

// Polynomials of degree 31 or less: the highest bit is the coefficient of x^0.
constexpr uint32_t kOne = 1U << 31;
// x^32 modulo the polynomial of CRC32C.
constexpr uint32_t kPolynomial = 0x82f63b78U;

constexpr uint32_t TimesX(uint32_t a) { return (a >> 1) ^ ((a & 1U) != 0 ? kPolynomial : 0U); }

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = TimesX(b);
  }
  return product;
}

// The power of x by which 2^k zero bytes multiply, for every k.
constexpr std::array<uint32_t, 64> kZeroBytes = [] {
  std::array<uint32_t, 64> powers{};
  powers[0] = kOne >> 8;
  for (size_t k = 1; k < powers.size(); ++k) powers[k] = Multiply(powers[k - 1], powers[k - 1]);
  return powers;
}();

}  // namespace

uint32_t Crc32c(absl::string_view bytes) { return ExtendCrc32c(0, bytes); }

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view more) {
  crc = ~crc;
  // The library takes the length as an int, so longer input is passed in pieces of 1 GiB.
  constexpr size_t kPiece = size_t{1} << 30;
  for (size_t at = 0; at < more.size(); at += kPiece) {
    const absl::string_view piece = more.substr(at, kPiece);
    // The library takes a non-const pointer, but does not write.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(piece.data()));
    crc = crc32_iscsi(data, std::ssize(piece), crc);
  }
  return ~crc;
}

uint32_t CrcShare(uint32_t crc, uint64_t following) {
  for (size_t k = 0; following != 0; ++k, following >>= 1) {
    if ((following & 1) != 0) crc = Multiply(crc, kZeroBytes[k]);
  }
  return crc;
}

}  // namespace cadre
