// Idea. A group sends how far it has moved, not where it is, and such differences need few bits:
// the aggregator averages the errors of several groups, and a sender that adds what a code has left
// out to its next difference (error feedback) loses nothing for good. Blocks are coded
// independently, each with the scale or the levels that fit its own values.
//
//   int8, E3M0  The scale of 256 values is a power of two, one byte. Its products are exact, so
//               a decoder has nothing to round, and an encoder rounds once. The levels of E3M0 are
//               powers of two as well: its relative squared error is 0.038 for normal, Laplace and
//               Student-3 distributions alike, where integers of 4 bits have 0.016, 0.032 and
//               0.076. Rounding to them needs integer operations on the bits of floats only.
//   stat2       stat2.cc
//   top-k       top_k.cc
//
// Source. E3M0 for pseudo-gradients: Streaming DiLoCo (Douillard et al., 2025), here with a power
// of two as scale.
//
// Equal bits. Programs on unlike processors must write and read equal codes. Every loop over values
// therefore computes on the bits of floats, or rounds every operation exactly and adds in eight
// lanes in double, in a fixed order. Vectors of any width then give the same result, and these
// files are compiled with -ffp-contract=off, because a fused multiply-add rounds once instead of
// twice. reference.cc does the same one value at a time, kernels/cuda/codec.cu with a block of
// threads for each unit. Tests compare all three.
//
// Limits. The floating-point environment must be the default one (round to nearest, denormals not
// flushed to zero). E3M0 has 7 powers of two: what is below 3/256 of its block's largest power is
// lost, unless error feedback keeps it. int8 and E3M0 have no denormal levels, so values below
// 2^-127 become zero.
#include "kernels/codec/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/vector_loop.h"
#include "kernels/codec/block_codes.h"
#include "kernels/codec/elements.h"

namespace cadre {

CADRE_VECTOR_LOOP
uint32_t codes::MaxMagnitude(const float* x, int64_t n) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, std::bit_cast<uint32_t>(x[i]) & kMagnitude);
  return max;
}

namespace {

using namespace codes;

// ---- bf16

CADRE_VECTOR_LOOP
void RoundBf16(const float* x, int64_t n, uint8_t* to) {
  for (int64_t i = 0; i < n; ++i) StoreU16(ToBf16(x[i]), to + 2 * i);
}

// Returns whether all values are finite.
CADRE_VECTOR_LOOP
bool WidenBf16(const uint8_t* from, int64_t n, float* x) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = uint32_t{LoadU16(from + 2 * i)} << 16;
    max = std::max(max, bits & kMagnitude);
    x[i] = std::bit_cast<float>(bits);
  }
  return IsFinite(max);
}

void EncodeBf16(Block x, std::string* coded) {
  RoundBf16(x.data(), std::ssize(x), Extend(coded, x.size() * sizeof(uint16_t)));
}

absl::Status DecodeBf16(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const from = Take(coded, x.size() * sizeof(uint16_t));
  if (from == nullptr) return Truncated();
  if (WidenBf16(from, std::ssize(x), x.data())) return absl::OkStatus();
  return absl::InvalidArgumentError("a value is not finite");
}

// ---- fp32

void EncodeFp32(Block x, std::string* coded) {
  std::memcpy(Extend(coded, x.size_bytes()), x.data(), x.size_bytes());
}

absl::Status DecodeFp32(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const from = Take(coded, x.size_bytes());
  if (from == nullptr) return Truncated();
  std::memcpy(x.data(), from, x.size_bytes());
  if (IsFinite(MaxMagnitude(x.data(), std::ssize(x)))) return absl::OkStatus();
  return absl::InvalidArgumentError("a value is not finite");
}

// ---- int8
//
// One byte e, then, unless e is 0, one byte for each value: integers q with x = q 2^(e - 133). The
// largest magnitude has the exponent e or, if it would be rounded to 128, e - 1.

CADRE_VECTOR_LOOP
void QuantizeInt8(const float* __restrict x, int64_t n, float factor, int8_t* __restrict q) {
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(RoundInt8(x[i], factor));
}

// Returns the largest magnitude of an integer.
CADRE_VECTOR_LOOP
uint8_t DequantizeInt8(const int8_t* __restrict q, int64_t n, float scale, float* __restrict x) {
  uint8_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    max = std::max(max, static_cast<uint8_t>(q[i] < 0 ? -q[i] : q[i]));
  }
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * scale;
  return max;
}

void EncodeInt8(Block x, std::string* coded) {
  const Int8Scale scale = Int8ScaleOf(MaxMagnitude(x.data(), std::ssize(x)));
  if (scale.exponent == 0) {
    *Extend(coded, 1) = 0;
    return;
  }
  uint8_t* const to = Extend(coded, 1 + x.size());
  *to = static_cast<uint8_t>(scale.exponent);
  auto* const q = reinterpret_cast<int8_t*>(to + 1);
  QuantizeInt8(x.data(), std::ssize(x), scale.factor, q);
  if (!scale.clamped) return;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i]) >= scale.limit) q[i] = x[i] < 0 ? -127 : 127;
  }
}

absl::Status DecodeInt8(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const scale = Take(coded, 1);
  if (scale == nullptr) return Truncated();
  if (*scale == 0) {
    std::fill(x.begin(), x.end(), 0.0F);
    return absl::OkStatus();
  }
  if (*scale < kMinInt8Scale || *scale > kMaxExponent) {
    return absl::InvalidArgumentError("a scale overflows");
  }
  const uint8_t* const q = Take(coded, x.size());
  if (q == nullptr) return Truncated();
  const uint8_t max = DequantizeInt8(reinterpret_cast<const int8_t*>(q), std::ssize(x),
                                     PowerOfTwo(*scale - 6U), x.data());
  if (max > 127) return absl::InvalidArgumentError("an integer is -128");
  // A smaller scale would do.
  if (max < (*scale > kMinInt8Scale ? 64 : 1)) {
    return absl::InvalidArgumentError("the scale is larger than the values require");
  }
  return absl::OkStatus();
}

// ---- E3M0
//
// One byte e, then, unless e is 0, four bits for each value: a sign and c, where 0 is zero and
// other c are 2^(e - 127 - 7 + c). A value is rounded to the nearest power of two; what is below
// the smallest of them is zero.

CADRE_VECTOR_LOOP
void QuantizeE3m0(const float* __restrict x, int64_t n, int32_t e, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = E3m0CodeOf(std::bit_cast<uint32_t>(x[i]), e);
}

CADRE_VECTOR_LOOP
void PackNibbles(const uint8_t* __restrict codes, int64_t bytes, uint8_t* __restrict to) {
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

CADRE_VECTOR_LOOP
void UnpackNibbles(const uint8_t* __restrict from, int64_t bytes, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < bytes; ++i) {
    codes[2 * i] = from[i] & 0xF;
    codes[2 * i + 1] = from[i] >> 4;
  }
}

// What the codes of a block contain: the smallest c above 0 (256 if there is none), the largest c,
// and whether a zero has a sign.
struct E3m0Codes {
  int32_t min;
  int32_t max;
  bool negative_zero;
};

CADRE_VECTOR_LOOP
E3m0Codes InspectE3m0(const uint8_t* codes, int64_t n) {
  // Minima and maxima of bytes, which vectors compute fastest. c - 1 is 255 for zero, so that its
  // minimum ignores zeros; `distance` is that from the code of a zero with a sign.
  uint8_t min = 255;
  uint8_t max = 0;
  uint8_t distance = 255;
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t c = codes[i] & 7;
    const auto less = static_cast<uint8_t>(c - 1);
    const auto from_negative_zero = static_cast<uint8_t>(codes[i] ^ 8);
    min = less < min ? less : min;
    max = c > max ? c : max;
    distance = from_negative_zero < distance ? from_negative_zero : distance;
  }
  return {min + 1, max, distance == 0};
}

CADRE_VECTOR_LOOP
void DequantizeE3m0(const uint8_t* __restrict codes, int64_t n, int32_t e, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = E3m0ValueOf(codes[i], e);
}

void EncodeE3m0(Block x, std::string* coded) {
  const uint32_t e = NearestPower(MaxMagnitude(x.data(), std::ssize(x)));
  if (e == 0) {
    *Extend(coded, 1) = 0;
    return;
  }
  std::array<uint8_t, kScaleBlock> codes = {};
  QuantizeE3m0(x.data(), std::ssize(x), static_cast<int32_t>(e), codes.data());
  const size_t bytes = (x.size() + 1) / 2;
  uint8_t* const to = Extend(coded, 1 + bytes);
  *to = static_cast<uint8_t>(e);
  PackNibbles(codes.data(), static_cast<int64_t>(bytes), to + 1);
}

absl::Status DecodeE3m0(absl::string_view* coded, std::span<float> x) {
  const uint8_t* const scale = Take(coded, 1);
  if (scale == nullptr) return Truncated();
  if (*scale == 0) {
    std::fill(x.begin(), x.end(), 0.0F);
    return absl::OkStatus();
  }
  if (*scale > kMaxExponent) return absl::InvalidArgumentError("a scale overflows");
  const size_t bytes = (x.size() + 1) / 2;
  const uint8_t* const from = Take(coded, bytes);
  if (from == nullptr) return Truncated();
  if (x.size() % 2 != 0 && from[bytes - 1] >> 4 != 0) {
    return absl::InvalidArgumentError("the padding is not zero");
  }
  std::array<uint8_t, kScaleBlock> codes;
  UnpackNibbles(from, static_cast<int64_t>(bytes), codes.data());
  const E3m0Codes found = InspectE3m0(codes.data(), std::ssize(x));
  if (found.negative_zero) return absl::InvalidArgumentError("a zero has a sign");
  // The scale is the exponent of the largest value.
  if (found.max < kLevels) {
    return absl::InvalidArgumentError("the scale is larger than the values require");
  }
  if (*scale + found.min <= kLevels) return absl::InvalidArgumentError("an exponent overflows");
  DequantizeE3m0(codes.data(), std::ssize(x), *scale, x.data());
  return absl::OkStatus();
}

// The number of values that one call below codes: a block, or as many of the codecs that code each
// value by itself.
size_t StepOf(CodecKind kind) {
  const int64_t block = BlockOf(kind);
  return block == 1 ? kCodecBlock : block;
}

void EncodeBlock(const Codec& codec, Block block, std::string* coded) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      return EncodeFp32(block, coded);
    case CodecKind::kBf16:
      return EncodeBf16(block, coded);
    case CodecKind::kInt8:
      return EncodeInt8(block, coded);
    case CodecKind::kE3m0:
      return EncodeE3m0(block, coded);
    case CodecKind::kStat2:
      return EncodeStat2(block, coded);
    case CodecKind::kTopK:
      return EncodeTopK(codec.keep, block, coded);
  }
}

absl::Status DecodeBlock(const Codec& codec, absl::string_view* coded, std::span<float> block) {
  switch (codec.kind) {
    case CodecKind::kFp32:
      return DecodeFp32(coded, block);
    case CodecKind::kBf16:
      return DecodeBf16(coded, block);
    case CodecKind::kInt8:
      return DecodeInt8(coded, block);
    case CodecKind::kE3m0:
      return DecodeE3m0(coded, block);
    case CodecKind::kStat2:
      return DecodeStat2(coded, block);
    case CodecKind::kTopK:
      return DecodeTopK(codec.keep, coded, block);
  }
  return absl::InvalidArgumentError("unknown codec");
}

// As CodedBytes, of one block.
std::optional<size_t> BytesOfBlock(CodecKind kind, absl::string_view coded, int64_t size) {
  const auto after_scale = [&](size_t scale, int64_t bytes) -> std::optional<size_t> {
    if (coded.size() < scale) return std::nullopt;
    const bool zeros = coded.substr(0, scale).find_first_not_of('\0') == absl::string_view::npos;
    return scale + (zeros ? 0 : bytes);
  };
  switch (kind) {
    case CodecKind::kFp32:
      return size * sizeof(float);
    case CodecKind::kBf16:
      return size * sizeof(uint16_t);
    case CodecKind::kInt8:
      return after_scale(1, size);
    case CodecKind::kE3m0:
      return after_scale(1, (size + 1) / 2);
    case CodecKind::kStat2:
      return after_scale(8, (size + 3) / 4);
    case CodecKind::kTopK:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

int64_t BlockOf(CodecKind kind) {
  switch (kind) {
    case CodecKind::kFp32:
    case CodecKind::kBf16:
      return 1;
    case CodecKind::kInt8:
    case CodecKind::kE3m0:
      return kScaleBlock;
    case CodecKind::kStat2:
    case CodecKind::kTopK:
      return kCodecBlock;
  }
  return kCodecBlock;
}

absl::Status CheckCodec(const Codec& codec) {
  if (codec.kind < CodecKind::kFp32 || codec.kind > CodecKind::kTopK) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", static_cast<int>(codec.kind), " does not exist"));
  }
  const bool sparse = codec.kind == CodecKind::kTopK;
  if (sparse ? codec.keep == 0 || codec.keep > kCodecBlock : codec.keep != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        codec.keep, " values are kept; ",
        sparse ? absl::StrCat("1 to ", kCodecBlock, " are possible") : "the codec keeps all"));
  }
  return absl::OkStatus();
}

int64_t MaxCodedBytes(const Codec& codec, int64_t size) {
  const int64_t block = BlockOf(codec.kind);
  const int64_t blocks = (size + block - 1) / block;
  switch (codec.kind) {
    case CodecKind::kFp32:
      return size * int64_t{sizeof(float)};
    case CodecKind::kBf16:
      return size * int64_t{sizeof(uint16_t)};
    case CodecKind::kInt8:
      return blocks + size;
    case CodecKind::kE3m0:
      return blocks + (size + 1) / 2;
    case CodecKind::kStat2:
      return 8 * blocks + (size + 3) / 4;
    case CodecKind::kTopK: {
      // Each value has at most its remainder, a sign, a magnitude and the end of its unary part.
      // The unary parts of a block are together at most its size, divided by 2^b.
      const int64_t rice = RiceBits(codec.keep);
      const int64_t values = (size * codec.keep + kCodecBlock - 1) / kCodecBlock + blocks;
      return 7 * blocks + (values * (rice + 3) + (size >> rice) + 7) / 8;
    }
  }
  return 0;
}

absl::Status Encode(const Codec& codec, std::span<const float> values, std::string* coded) {
  if (!IsFinite(MaxMagnitude(values.data(), std::ssize(values)))) {
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    return absl::InvalidArgumentError(
        absl::StrCat("value ", bad - values.begin(), " is not finite"));
  }
  const size_t block = StepOf(codec.kind);
  for (size_t at = 0; at < values.size(); at += block) {
    EncodeBlock(codec, values.subspan(at, std::min(block, values.size() - at)), coded);
  }
  return absl::OkStatus();
}

std::optional<size_t> CodedBytes(const Codec& codec, absl::string_view coded, int64_t size) {
  const auto step = static_cast<int64_t>(StepOf(codec.kind));
  const size_t before = coded.size();
  for (int64_t at = 0; at < size; at += step) {
    const auto bytes = BytesOfBlock(codec.kind, coded, std::min(step, size - at));
    if (!bytes || *bytes > coded.size()) return std::nullopt;
    coded.remove_prefix(*bytes);
  }
  return before - coded.size();
}

absl::Status Decode(const Codec& codec, absl::string_view* coded, std::span<float> values) {
  const size_t block = StepOf(codec.kind);
  for (size_t at = 0; at < values.size(); at += block) {
    CADRE_RETURN_IF_ERROR(
        DecodeBlock(codec, coded, values.subspan(at, std::min(block, values.size() - at))));
  }
  return absl::OkStatus();
}

}  // namespace cadre
