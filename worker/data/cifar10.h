// CIFAR-10's binary files: records of 3073 bytes, the label first, then the red, green and blue
// planes of 32 x 32 pixels each.
//
// Thread-safe (values and a pure function).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre {

inline constexpr int64_t kCifarSide = 32;
inline constexpr int64_t kCifarChannels = 3;
inline constexpr int64_t kCifarPixelBytes = kCifarSide * kCifarSide * kCifarChannels;
inline constexpr int64_t kCifarRecordBytes = 1 + kCifarPixelBytes;
inline constexpr int64_t kCifarClasses = 10;

struct CifarImages {
  std::vector<int32_t> labels;
  // By image, row, column, channel.
  std::vector<uint8_t> pixels;
};

// Appends the records of one file to `images`. `name` is used in messages.
// Errors: DataLoss, naming the size, for a file that is empty or ends inside a record;
// InvalidArgument, naming the record, for a label that is not below kCifarClasses. `images` is then
// unchanged.
absl::Status ParseCifar10(const std::string& name, std::span<const std::byte> file,
                          CifarImages& images);

}  // namespace cadre
