// A frame: the codes of units (model/exchange_units.h) in parameter order, each padded to a
// multiple of 4 bytes with zeros. Of statistics it has the values, of all others the differences to
// a version; units that are not coded lossily are fp32.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/coding.h"
#include "model/exchange_units.h"

namespace cadre {

// Words of 4 bytes of the largest possible frame.
int64_t MaxFrameWords(std::span<const ExchangeUnit> units, const Codec& codec);

// Appends the frame of the units to `frame` and, unless it is null, the words of each unit to
// `words`. `values`: of the positions of the units, without gaps. InvalidArgument, naming the
// position, for a value that is not finite.
absl::Status EncodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         std::span<const float> values, std::string* frame,
                         std::vector<uint16_t>* words = nullptr);

// Decodes a whole frame. `values`: of all positions of the units. Errors: those of FrameReader.
absl::Status DecodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         absl::string_view frame, std::span<float> values);
// As above; `values` gets the size of the units.
absl::Status DecodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         absl::string_view frame, std::vector<float>* values);

// Where the codes of units 0, `piece`, 2 * piece and so on begin in the frame, and its end; found
// without decoding them. Nothing: the lengths of the codes follow from the values (top-k), or the
// frame is malformed.
std::optional<std::vector<size_t>> PieceOffsets(std::span<const ExchangeUnit> units,
                                                const Codec& codec, absl::string_view frame,
                                                size_t piece);

// Decodes a frame unit by unit, with bounded memory.
class FrameReader {
 public:
  // Reads bytes from `offset` of the frame on.
  using ReadAt = std::function<absl::Status(uint64_t offset, std::span<char> bytes)>;

  FrameReader(const Codec& codec, uint64_t bytes, ReadAt read)
      : codec_(codec), bytes_(bytes), read_(std::move(read)) {}

  // Decodes the next unit of the frame. Requires: values has the size of the unit. Errors:
  // InvalidArgument, naming the position of the unit, for a malformed code; those of `read`.
  absl::Status Next(const ExchangeUnit& unit, std::span<float> values);
  // Bytes of the units so far.
  uint64_t done() const { return offset_ + begin_; }
  // InvalidArgument if bytes follow the last unit.
  absl::Status CheckEnd() const;

 private:
  absl::Status Fill(uint64_t needed);

  const Codec codec_;
  const uint64_t bytes_;
  const ReadAt read_;
  // Bytes of the frame before the unread ones.
  uint64_t offset_ = 0;
  std::string buffer_;
  size_t begin_ = 0;
};

}  // namespace cadre
