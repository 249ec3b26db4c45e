#include "kernels/codec/coding.h"

namespace cadre {

Codec CodecOf(const v1::Coding& coding) {
  switch (coding.codec()) {
    case v1::CODEC_BF16:
      return {CodecKind::kBf16};
    case v1::CODEC_INT8:
      return {CodecKind::kInt8};
    case v1::CODEC_E3M0:
      return {CodecKind::kE3m0};
    case v1::CODEC_STAT2:
      return {CodecKind::kStat2};
    case v1::CODEC_TOPK:
      return {CodecKind::kTopK, coding.keep()};
    default:
      return {CodecKind::kFp32};
  }
}

}  // namespace cadre
