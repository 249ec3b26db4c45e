// IDX files: arrays of bytes as MNIST and its relatives come, plain or compressed with gzip.
//
// A file is: two zero bytes, the type of its elements (8: unsigned byte, the only one read here),
// the number of dimensions, each extent as four bytes with the high one first, then the elements,
// row-major, and nothing after them.
//
// Thread-safe (values and pure functions over files and bytes).
//
// Guarantees: a file is believed only as far as it has been read; memory grows with what is there
// and not with what the header claims. Errors name the file: NotFound, PermissionDenied, ... where
// it cannot be opened or read; InvalidArgument for what is no IDX file of bytes, or one larger than
// kMostIdxElements; DataLoss for one that is cut short, has bytes too many, or is damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

inline constexpr int kMostIdxDims = 4;
inline constexpr int64_t kMostIdxElements = int64_t{4} << 30;

struct IdxArray {
  // Extents, outermost first; of images [samples, height, width].
  std::vector<int64_t> dims;
  // Row-major; as many as the product of `dims`.
  std::vector<uint8_t> data;
};

// The whole file.
absl::StatusOr<IdxArray> ReadIdx(const std::string& path);

// The same of bytes in memory, not compressed; `name` stands for the path in messages.
absl::StatusOr<IdxArray> ParseIdx(const std::string& name, std::span<const std::byte> bytes);

// The extents alone; nothing behind the header is read or checked.
absl::StatusOr<std::vector<int64_t>> ReadIdxDims(const std::string& path);

// The extents, after reading the file to its end and dropping the elements: whole and undamaged.
absl::StatusOr<std::vector<int64_t>> CheckIdx(const std::string& path);

}  // namespace cadre
