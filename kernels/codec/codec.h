// Lossy codes for differences of models, as groups and aggregators exchange them.
//
// A codec turns a run (consecutive values of one tensor) into bytes, block by block. Blocks begin
// at multiples of kCodecBlock from the start of a run, and no block depends on another, so runs
// that begin at multiples of kCodecBlock of a tensor have the same code wherever the tensor is cut.
// Only the last block may be shorter.
//
// Codes are deterministic: equal values give equal bytes on every machine, because only exactly
// rounded operations in a fixed order are used. Decoding is a function of the bytes.
//
//   codec   bits a value   code of a block
//   fp32    32             the values
//   bf16    16             rounded to nearest, ties to even
//   int8    8.03           per 256 values: a power of two, then integers of -127 to 127
//   e3m0    4.03           per 256 values: a power of two, then sign and 3-bit exponent
//   stat2   2.02           four levels: the means of what lies between mean - 1.5 sigma, mean and
//                          mean + 1.5 sigma
//   topk    0.16           the `keep` largest of 4,096 (here 64), entropy-coded indices, sign and
//                          one of two magnitudes
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cadre {

enum class CodecKind : uint8_t {
  kFp32 = 1,
  kBf16 = 2,
  kInt8 = 3,
  kE3m0 = 4,
  kStat2 = 5,
  kTopK = 6
};

inline constexpr int64_t kCodecBlock = 4096;

struct Codec {
  CodecKind kind = CodecKind::kFp32;
  // kTopK: values that are kept of a whole block, 1 to kCodecBlock. Of a shorter block, a
  // proportional number is kept, rounded up. 0 otherwise.
  uint32_t keep = 0;
  bool operator==(const Codec&) const = default;
};

// InvalidArgument for a codec that does not exist.
absl::Status CheckCodec(const Codec& codec);

// The maximum number of bytes of a run of `size` values. Requires: CheckCodec.
int64_t MaxCodedBytes(const Codec& codec, int64_t size);

// Appends the code of the run. InvalidArgument, naming the first value that is not finite; `coded`
// is then unchanged. Requires: CheckCodec.
absl::Status Encode(const Codec& codec, std::span<const float> values, std::string* coded);

// Decodes a run of values.size() values from the front of `coded` and removes its bytes. All values
// are finite. InvalidArgument with the reason for bytes that Encode does not write: truncated,
// numbers that are not finite or overflow, indices outside a block, padding. `values` is then
// unspecified. Requires: CheckCodec.
absl::Status Decode(const Codec& codec, absl::string_view* coded, std::span<float> values);

}  // namespace cadre
