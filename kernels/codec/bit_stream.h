// Streams of bits that are packed into bytes, starting with the lowest bit of each byte.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Appends to a borrowed string.
class BitWriter {
 public:
  explicit BitWriter(std::string* out) : out_(out) {}

  // Requires: value < 2^bits, bits <= 32.
  void Write(uint32_t value, uint32_t bits) {
    pending_ |= uint64_t{value} << count_;
    count_ += bits;
    if (count_ >= 32) Flush(4);
  }
  // A Golomb-Rice code: value >> bits in unary (ones, then a zero), then the lowest bits. Requires:
  // bits <= 15.
  void WriteRice(uint32_t value, uint32_t bits) {
    uint32_t ones = value >> bits;
    for (; ones > 16; ones -= 16) Write(0xFFFF, 16);
    const uint32_t lowest = value & ((1U << bits) - 1);
    Write(((1U << ones) - 1) | lowest << (ones + 1), ones + 1 + bits);
  }
  // Pads the last byte with zeros.
  void Finish() { Flush((count_ + 7) / 8); }

 private:
  // Requires: bytes <= 4.
  void Flush(uint32_t bytes) {
    out_->append(reinterpret_cast<const char*>(&pending_), bytes);
    pending_ >>= 8 * bytes;
    count_ -= std::min(count_, 8 * bytes);
  }

  std::string* const out_;
  uint64_t pending_ = 0;
  uint32_t count_ = 0;
};

// Reads from borrowed bytes.
class BitReader {
 public:
  explicit BitReader(absl::string_view bytes) : bytes_(bytes) {}

  // Whether everything that was read so far lies within the bytes. Reads beyond the end return
  // zeros.
  bool ok() const { return position_ <= 8 * bytes_.size(); }

  // Requires: bits <= 32.
  uint32_t Read(uint32_t bits) {
    const auto value = static_cast<uint32_t>(Peek() & ((uint64_t{1} << bits) - 1));
    position_ += bits;
    return value;
  }
  uint64_t ReadRice(uint32_t bits) {
    uint64_t ones = 0;
    while (ok()) {
      // Only 57 bits of Peek are certain to be loaded, so at most 32 of them are used at a time.
      const auto run = std::min<uint32_t>(std::countr_one(Peek()), 32);
      ones += run;
      position_ += run;
      if (run < 32) break;
    }
    ++position_;
    return (ones << bits) + Read(bits);
  }
  // Reads the rest of the last byte. Returns whether it is zero, as BitWriter::Finish pads it.
  bool Finish() {
    const auto rest = static_cast<uint32_t>(-position_ % 8);
    return Read(rest) == 0;
  }
  // Number of bytes that were read, including one of which only a part was read.
  size_t bytes() const { return (position_ + 7) / 8; }

 private:
  // Returns at least the next 57 bits; higher bits may be zero instead.
  uint64_t Peek() const {
    const size_t byte = position_ / 8;
    uint64_t loaded = 0;
    // The usual case is apart, because a copy of constant size is one instruction.
    if (byte + sizeof(loaded) <= bytes_.size()) {
      std::memcpy(&loaded, bytes_.data() + byte, sizeof(loaded));
    } else if (byte < bytes_.size()) {
      std::memcpy(&loaded, bytes_.data() + byte, bytes_.size() - byte);
    }
    return loaded >> (position_ % 8);
  }

  const absl::string_view bytes_;
  uint64_t position_ = 0;
};

}  // namespace cadre
