// Streams of bits within bytes, the lowest bit of a byte first.
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
    while (count_ >= 8) {
      out_->push_back(static_cast<char>(pending_));
      pending_ >>= 8;
      count_ -= 8;
    }
  }
  // A Golomb-Rice code: value >> bits in unary (ones, then a zero), then the lowest bits.
  void WriteRice(uint32_t value, uint32_t bits) {
    for (uint32_t ones = value >> bits; ones > 0;) {
      const uint32_t now = std::min(ones, 16U);
      Write((1U << now) - 1, now);
      ones -= now;
    }
    Write((value & ((1U << bits) - 1)) << 1, bits + 1);
  }
  // Pads the last byte with zeros.
  void Finish() {
    if (count_ > 0) Write(0, 8 - count_);
  }

 private:
  std::string* const out_;
  uint64_t pending_ = 0;
  uint32_t count_ = 0;
};

// Reads from borrowed bytes.
class BitReader {
 public:
  explicit BitReader(absl::string_view bytes) : bytes_(bytes) {}

  // Whether all bits so far were there; after the end, bits are 0.
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
      // The highest bits of a peek may lie beyond what it has loaded.
      const auto run = std::min<uint32_t>(std::countr_one(Peek()), 32);
      ones += run;
      position_ += run;
      if (run < 32) break;
    }
    ++position_;
    return (ones << bits) + Read(bits);
  }
  // Whether the rest of the last byte is zero.
  bool Finish() {
    const auto rest = static_cast<uint32_t>(-position_ % 8);
    return Read(rest) == 0;
  }
  // Bytes that were read, the last one included.
  size_t bytes() const { return (position_ + 7) / 8; }

 private:
  // At least the next 57 bits.
  uint64_t Peek() const {
    const size_t byte = position_ / 8;
    uint64_t loaded = 0;
    if (byte < bytes_.size()) {
      std::memcpy(&loaded, bytes_.data() + byte, std::min(sizeof(loaded), bytes_.size() - byte));
    }
    return loaded >> (position_ % 8);
  }

  const absl::string_view bytes_;
  uint64_t position_ = 0;
};

}  // namespace cadre
