// Numbers of any type whose sums over a few ranks are exact in any order: multiples of 1/8, small
// enough for every type. The whole numbers are the multiples themselves, moved up from below zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/random.h"
#include "tensor/dtype.h"

namespace cadre {

// k eighths, |k| <= 8 for each of at most 16 addends: 7 bits, which bfloat16 just holds.
inline uint64_t ExactBits(DType type, int eighths, int addends) {
  const double value = eighths / 8.0;
  switch (type) {
    case DType::kFloat32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kBFloat16:
      return std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16;
    case DType::kFloat16: {
      if (eighths == 0) return 0;
      const int exponent = std::ilogb(value);
      const auto fraction = static_cast<uint64_t>(std::ldexp(std::abs(value), 10 - exponent));
      return (eighths < 0 ? 0x8000U : 0U) | static_cast<uint64_t>(exponent + 15) << 10 |
             (fraction & 0x3ff);
    }
    case DType::kFloat64:
      return std::bit_cast<uint64_t>(value);
    case DType::kUInt64:
      return static_cast<uint64_t>(eighths + 8 * addends);
    case DType::kBytes:
      return static_cast<uint64_t>(eighths) & 0xff;
  }
  return 0;
}

inline int ExactEighths(uint64_t seed, int rank, size_t i) {
  return static_cast<int>(RandomBits(seed, RandomStream::kTest, static_cast<uint64_t>(rank), i) %
                          17) -
         8;
}

// Of one rank.
inline std::vector<std::byte> ExactData(DType type, uint64_t seed, int rank, size_t elements) {
  const size_t element = SizeOf(type);
  std::vector<std::byte> data(elements * element);
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t bits = ExactBits(type, ExactEighths(seed, rank, i), 1);
    std::memcpy(data.data() + i * element, &bits, element);
  }
  return data;
}

// The sum over `ranks`.
inline std::vector<std::byte> ExactSum(DType type, uint64_t seed, std::span<const int> ranks,
                                       size_t elements) {
  const size_t element = SizeOf(type);
  std::vector<std::byte> data(elements * element);
  for (size_t i = 0; i < elements; ++i) {
    int eighths = 0;
    for (const int rank : ranks) eighths += ExactEighths(seed, rank, i);
    const uint64_t bits = ExactBits(type, eighths, std::ssize(ranks));
    std::memcpy(data.data() + i * element, &bits, element);
  }
  return data;
}

}  // namespace cadre
