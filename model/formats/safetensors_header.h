// The header of a safetensors file: names, types and positions of the tensors.
//
// A file consists of the header's length (8 bytes, little-endian), the header (JSON, padded with
// spaces) and the data. The header maps a tensor's name to {"dtype", "shape", "data_offsets":
// [begin, end)}, with offsets from the end of the header; "__metadata__" maps strings to strings.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensor/shape.h"

namespace cadre {

struct NamedShape {
  std::string name;
  Shape shape;
  friend bool operator==(const NamedShape&, const NamedShape&) = default;
};

// One tensor of a file.
struct StoredTensor {
  std::string name;
  // "F32", "BF16", ...
  std::string type;
  Shape shape;
  // Bytes [begin, end) of the data.
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  // In the order of the data.
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Limits of the header's length and of a tensor's dimensions.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensorDims = 32;

// Bytes of an element of a type of the format, 0 for unknown types.
int64_t ElementBytes(absl::string_view type);

// `json`: the header without its length. `data_bytes`: size of the data after it.
// Guarantees: names are unique; the size of every tensor of a known type matches its shape; tensors
// cover the data without overlaps or gaps. Types may be unknown: the format gains new ones, which
// need not be read unless the model needs the tensor.
// Errors: InvalidArgument with `file` and, if applicable, the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file,
                                                         absl::string_view json,
                                                         int64_t data_bytes);

// A type in which values can be written.
enum class FloatType { kF32, kBF16, kF16 };
// The name in the format: "F32", "BF16" or "F16".
absl::string_view TypeName(FloatType type);
// The type that users call "fp32", "bf16" or "fp16". Errors: InvalidArgument for other names.
absl::StatusOr<FloatType> ParseFloatType(absl::string_view name);

// Length and header of a file of tensors of this type in this order, padded to a multiple of 8
// bytes. Errors: InvalidArgument for repeated or reserved names.
absl::StatusOr<std::string> FormatSafetensorsHeader(
    const std::vector<NamedShape>& tensors, const std::map<std::string, std::string>& metadata,
    FloatType type = FloatType::kF32);

}  // namespace cadre
