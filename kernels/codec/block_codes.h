// The codes of single blocks of which codec.cc composes those of runs, where they have a file of
// their own, and what all codes need to read and write bytes. Private to this folder.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre::codes {

using Block = std::span<const float>;

// stat2.cc
void EncodeStat2(Block x, std::string* coded);
absl::Status DecodeStat2(absl::string_view* coded, std::span<float> x);
// top_k.cc. `keep_of_block`: Codec::keep.
void EncodeTopK(uint32_t keep_of_block, Block x, std::string* coded);
absl::Status DecodeTopK(uint32_t keep_of_block, absl::string_view* coded, std::span<float> x);

// The bits of the largest magnitude.
uint32_t MaxMagnitude(const float* x, int64_t n);

inline absl::Status Truncated() { return absl::InvalidArgumentError("the code is truncated"); }

// Removes `size` bytes from the front of `coded`; null if there are fewer.
inline const uint8_t* Take(absl::string_view* coded, size_t size) {
  if (coded->size() < size) return nullptr;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(coded->data());
  coded->remove_prefix(size);
  return bytes;
}

// Extends `coded` by `size` bytes and returns the first of them.
inline uint8_t* Extend(std::string* coded, size_t size) {
  const size_t begin = coded->size();
  coded->resize(begin + size);
  return reinterpret_cast<uint8_t*>(coded->data()) + begin;
}

inline bool IsFiniteBf16(uint16_t value) { return (value & 0x7F80) != 0x7F80; }

inline void StoreU16(uint16_t value, uint8_t* to) { std::memcpy(to, &value, sizeof(value)); }
inline uint16_t LoadU16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace cadre::codes
