// A sum of floating-point numbers depends on its order unless every partial sum is exact. Integers
// up to 256 are exact in bfloat16, which has the fewest bits (8) of the three types, so addends are
// integers from 0 to 256 / ranks, and no partial sum exceeds 256.
//
// The addend of a rank at a position is a hash of both, repeated with a prime period. An algorithm
// that adds a chunk twice, omits it or writes it to another position therefore changes the result
// almost everywhere, and errors are counted by comparing bytes.
#include "bench/allreduce/exact_data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace cadre::bench {
namespace {

// A prime number, so that no chunk or page holds a whole number of periods.
constexpr size_t kPeriod = 8191;

// The addend of rank `rank` at position `i` of the pattern.
uint32_t ValueAt(int rank, int ranks, size_t i) {
  const auto values = static_cast<uint32_t>(256 / ranks);
  // Knuth's multiplicative hash: neighbouring positions and ranks have different values.
  const uint32_t mixed =
      (static_cast<uint32_t>(i) * 131 + static_cast<uint32_t>(rank) + 1) * uint32_t{2654435761};
  return (mixed >> 16) % (values + 1);
}

// The bits of a whole number from 0 to 256, which all three types hold exactly.
uint32_t BitsOf(DType dtype, uint32_t value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == DType::kFloat32) return bits;
  if (dtype == DType::kBFloat16) return bits >> 16;
  if (value == 0) return 0;
  // float16: five bits of exponent around 15 instead of eight around 127, ten of fraction.
  return (((bits >> 23) - 127 + 15) << 10) | ((bits >> 13) & 0x3ff);
}

// One period of the pattern that `value_at` describes, as bytes of `dtype`.
template <typename ValueAtPosition>
std::vector<std::byte> Period(DType dtype, const ValueAtPosition& value_at) {
  const size_t element = SizeOf(dtype);
  std::vector<std::byte> period(kPeriod * element);
  for (size_t i = 0; i < kPeriod; ++i) {
    const uint32_t bits = BitsOf(dtype, value_at(i));
    std::memcpy(period.data() + i * element, &bits, element);  // little-endian
  }
  return period;
}

// Calls `visit(part)` for the parts of `data` that the pattern covers, one period after another.
template <typename Bytes, typename Visit>
void ByPeriod(const std::vector<std::byte>& period, Bytes data, const Visit& visit) {
  for (size_t at = 0; at < data.size(); at += period.size()) {
    visit(data.subspan(at, std::min(period.size(), data.size() - at)));
  }
}

}  // namespace

void FillExact(DType dtype, int rank, int ranks, std::span<std::byte> data) {
  const std::vector<std::byte> period =
      Period(dtype, [&](size_t i) { return ValueAt(rank, ranks, i); });
  ByPeriod(period, data, [&](std::span<std::byte> part) {
    std::memcpy(part.data(), period.data(), part.size());
  });
}

int64_t CountErrors(DType dtype, int ranks, std::span<const std::byte> data) {
  const std::vector<std::byte> period = Period(dtype, [&](size_t i) {
    uint32_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += ValueAt(rank, ranks, i);
    return sum;
  });
  const size_t element = SizeOf(dtype);
  int64_t errors = 0;
  ByPeriod(period, data, [&](std::span<const std::byte> part) {
    if (std::memcmp(part.data(), period.data(), part.size()) == 0) return;
    for (size_t at = 0; at < part.size(); at += element) {
      errors += std::memcmp(part.data() + at, period.data() + at, element) != 0;
    }
  });
  return errors;
}

}  // namespace cadre::bench
