// Types of elements.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace cadre {

enum class DType : uint8_t {
  kBytes = 0,  // not numeric: copied, never added
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kUInt64 = 4,
  kFloat64 = 5,
};

// Bytes of one element.
constexpr size_t SizeOf(DType type) {
  switch (type) {
    case DType::kBytes:
      return 1;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat32:
      return 4;
    case DType::kUInt64:
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

// "float32".
constexpr absl::string_view DTypeName(DType type) {
  switch (type) {
    case DType::kBytes:
      return "bytes";
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kUInt64:
      return "uint64";
    case DType::kFloat64:
      return "float64";
  }
  return "unknown";
}

}  // namespace cadre
