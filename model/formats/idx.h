// IDX files, the format of MNIST: arrays of bytes, plain or compressed with gzip.
//
// A file consists of two zero bytes, the type of the elements (8: unsigned byte, the only supported
// one), the number of dimensions, the extents (four bytes each, big-endian) and the elements,
// row-major.
//
// Thread-safe (values and pure functions over files).
//
// Guarantees: memory grows with the data, not with the extents of the header. Errors name the file:
// NotFound, PermissionDenied, ... if it cannot be opened or read; InvalidArgument for other formats
// and more than kMaxIdxElements; DataLoss for truncated or damaged files and extra bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rooted_files.h"

namespace cadre {

inline constexpr int kMaxIdxDims = 4;
inline constexpr int64_t kMaxIdxElements = int64_t{4} << 30;

struct IdxArray {
  // Extents, outermost first; of images [samples, height, width].
  std::vector<int64_t> dims;
  // Row-major; as many as the product of `dims`.
  std::vector<uint8_t> data;
};

// The whole file.
absl::StatusOr<IdxArray> ReadIdx(const std::string& path,
                                 const RootedFiles& files = RootedFiles::Unrestricted());

// The extents, after verifying the whole file.
absl::StatusOr<std::vector<int64_t>> CheckIdx(const std::string& path);

}  // namespace cadre
