// Data sets of JPEG files, wherever these lie: decoded, cropped and normalised when asked for.
//
// A sample that cannot be read is replaced by the next one of the same class, so that its label is
// known without decoding.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/augmentation.h"
#include "worker/data/corrupt_samples.h"
#include "worker/data/dataset.h"

namespace cadre {

// Files larger than this are refused unread.
inline constexpr int64_t kMaxEncodedBytes = int64_t{64} << 20;

// Where encoded images and their labels lie. Thread-safe.
class EncodedImages {
 public:
  virtual ~EncodedImages() = default;
  // One per sample.
  virtual const std::vector<int32_t>& labels() const = 0;
  // For messages: the file, and the member where it is an archive.
  virtual std::string Name(int64_t index) const = 0;
  // The whole file of the sample.
  virtual absl::Status Read(int64_t index, std::vector<std::byte>& bytes) const = 0;
};

// `corrupt` may already have counted what was left out of `images`.
std::unique_ptr<Dataset> MakeJpegDataset(std::unique_ptr<EncodedImages> images,
                                         const ImageTransform& transform,
                                         std::unique_ptr<CorruptSamples> corrupt);

}  // namespace cadre
