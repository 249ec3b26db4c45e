// Numbers of every type whose sums over a few ranks are exact in any order: multiples of 1/8 that
// are small enough for every type. Integers are the multiples themselves, shifted to be
// non-negative.
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

// The bits of eighths / 8, a sum of `addends` numbers. Each number has at most 8 eighths and there
// are at most 16 addends: 7 bits, which fit into bfloat16.
inline uint64_t ExactBits(DType type, int eighths, int addends) {
  const float value = eighths / 8.0F;
  switch (type) {
    case DType::kFloat32:
      return std::bit_cast<uint32_t>(value);
    case DType::kBFloat16:
      return std::bit_cast<uint32_t>(value) >> 16;
    case DType::kFloat16: {
      if (eighths == 0) return 0;
      const unsigned exponent = std::ilogb(value) + 15;
      const unsigned fraction = std::ldexp(std::abs(value), 25 - exponent);
      return (eighths < 0 ? 0x8000U : 0U) | exponent << 10 | (fraction & 0x3ff);
    }
    case DType::kFloat64:
      return std::bit_cast<uint64_t>(double{value});
    case DType::kUInt64:
      return eighths + 8 * addends;
    case DType::kBytes:
      return eighths & 0xff;
  }
  return 0;
}

inline int ExactEighths(uint64_t seed, uint64_t rank, size_t i) {
  const int draw = RandomBits(seed, RandomStream::kTest, rank, i) % 17;
  return draw - 8;
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

// The numbers of one rank.
inline std::vector<std::byte> ExactData(DType type, uint64_t seed, int rank, size_t elements) {
  return ExactSum(type, seed, {&rank, 1}, elements);
}

}  // namespace cadre
