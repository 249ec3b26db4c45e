// The header of a safetensors file: which tensors of which type lie where in the data behind it.
// Knows JSON and nothing of files.
//
// A file is: the header's length (8 bytes, low one first), the header (JSON, padded with spaces),
// the data. The header maps a tensor's name to {"dtype", "shape", "data_offsets": [begin, end)},
// offsets counting from the end of the header; "__metadata__" maps strings to strings.
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

// A tensor that somebody calls by name.
struct NamedShape {
  std::string name;
  Shape shape;
  friend bool operator==(const NamedShape&, const NamedShape&) = default;
};

struct StoredTensor {
  std::string name;
  // "F32", "BF16", ...: as the format calls it.
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

// Longest header that is read, and most dimensions of a tensor.
inline constexpr int64_t kMostHeaderBytes = 100'000'000;
inline constexpr size_t kMostTensorDims = 32;

// Bytes of an element of a type of the format, 0 for a type that is not one.
int64_t ElementBytes(absl::string_view type);

// `json`: the header without its length. `data_bytes`: what the file has behind it.
// Guarantees: no name comes twice; every tensor has its shape's bytes; tensors follow one another
// from 0 to data_bytes without overlap or hole.
// Errors: InvalidArgument naming `file` and, where there is one, the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file,
                                                         absl::string_view json,
                                                         int64_t data_bytes);

// Length and header of a file of fp32 tensors that lie in this order; its data begins at a multiple
// of 8. Errors: InvalidArgument for a name that comes twice or that the format keeps for itself.
absl::StatusOr<std::string> FormatSafetensorsHeader(
    const std::vector<NamedShape>& tensors, const std::map<std::string, std::string>& metadata);

// A name as it may stand in a message: escaped, in quotes, cut where it is long.
std::string Quoted(absl::string_view name);

}  // namespace cadre
