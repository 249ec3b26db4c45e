// The codecs of kernels/codec/codec.h a second time, as plainly as possible: one value at a time,
// with the functions of the C++ library, without tables and without tricks on the bits of floats.
// Tests compare the codecs that programs use with these, bit by bit.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/codec/codec.h"

namespace cadre {

// The code of a run. Requires: CheckCodec; all values are finite.
std::string ReferenceEncode(const Codec& codec, std::span<const float> values);

// The `size` values of a run. Requires: `coded` is the code of a run of this size, as Encode writes
// it, and nothing else.
std::vector<float> ReferenceDecode(const Codec& codec, absl::string_view coded, int64_t size);

}  // namespace cadre
