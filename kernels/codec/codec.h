// Lossy codes for differences of models, as groups and aggregators exchange them.
//
// A codec turns a run (consecutive values of one tensor) into bytes, block by block. Blocks begin
// at multiples of BlockOf(kind) from the start of a run, and no block depends on another, so runs
// that begin at multiples of it (kCodecBlock is one for every codec) from the start of a tensor
// have the same code wherever the tensor is cut. Only the last block may be shorter.
//
// Guarantees:
//  - Equal values give equal bytes on every machine, because only exactly rounded operations in a
//    fixed order are used. Decoding is a function of the bytes.
//  - A block of zeros is decoded as zeros, and no finite value as one that is not finite.
//  - With x a value, m the largest magnitude of its block and d what is decoded:
//
//   codec   bits a value   code of a block                        bound of the error
//   fp32    32             the values                             d = x
//   bf16    16             rounded to nearest, ties to even       |d - x| <= |x| / 256
//   int8    8.03           per 256 values: a power of two, then   |d - x| <= m / 127
//                          integers of -127 to 127
//   e3m0    4.03           per 256 values: a power of two, then   |d - x| <= |x| / 3, or d = 0 and
//                          sign and 3-bit exponent                |x| < m / 64
//   stat2   2.02           four levels: the means of what lies    sum of (d - x)^2 <=
//                          between mean - 1.5 sigma, mean and     (1 + 2^-15) sum of x^2
//                          mean + 1.5 sigma
//   topk    0.16           the 64 largest of 4,096 (or another    as for stat2; all but `keep`
//                          `keep`): entropy-coded indices,       values are 0
//                          sign and one of two magnitudes
//
//    except that errors of up to 2^-126 may be added, and that e3m0 rounds down from 1.5 * 2^127.
//
// Requires: the default floating-point environment.
//
// Thread-safe (pure functions). Nothing is kept between calls; callers own all arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/codec/elements.h"

namespace cadre {

enum class CodecKind : uint8_t {
  kFp32 = 1,
  kBf16 = 2,
  kInt8 = 3,
  kE3m0 = 4,
  kStat2 = 5,
  kTopK = 6
};

struct Codec {
  CodecKind kind = CodecKind::kFp32;
  // kTopK: maximum number of values that are kept of a whole block, 1 to kCodecBlock. Of a shorter
  // block, a proportional number is kept, rounded up. Zeros are never kept; of equal magnitudes,
  // those with the lowest indices are. 0 for the other kinds.
  uint32_t keep = 0;
  bool operator==(const Codec&) const = default;
};

// The number of values that are coded together: 1, 256 or kCodecBlock.
int64_t BlockOf(CodecKind kind);

// InvalidArgument for a codec that does not exist.
absl::Status CheckCodec(const Codec& codec);

// The maximum number of bytes of a run of `size` values. Requires: CheckCodec.
int64_t MaxCodedBytes(const Codec& codec, int64_t size);

// Appends the code of the run. InvalidArgument, naming the first value that is not finite; `coded`
// is then unchanged. Requires: CheckCodec.
absl::Status Encode(const Codec& codec, std::span<const float> values, std::string* coded);

// Decodes a run of values.size() values from the front of `coded` and removes its bytes. All values
// are finite. InvalidArgument with the reason for bytes that Encode does not write: truncated,
// numbers that are not finite or overflow, a scale that is larger than the values require, indices
// outside of a block, padding that is not zero (codes of equal or unsorted indices do not exist).
// Both arguments are then unspecified. Only stat2 and topk accept some bytes that Encode does not
// write. Requires: CheckCodec.
absl::Status Decode(const Codec& codec, absl::string_view* coded, std::span<float> values);

// The number of bytes at the front of `coded` that are the code of a run of `size` values, found
// without decoding it. Nothing: there are fewer, or it is a code of kTopK, whose length follows
// from its values. Requires: CheckCodec.
std::optional<size_t> CodedBytes(const Codec& codec, absl::string_view coded, int64_t size);

}  // namespace cadre
