// Reads JPEG files: grey and colour, baseline and progressive, by libjpeg-turbo.
//
//   JpegReader reader;
//   CADRE_ASSIGN_OR_RETURN(const ImageSize size, reader.Open(bytes));
//   CADRE_RETURN_IF_ERROR(reader.Decode(3, 8, image));
//
// Files may be hostile: whatever the bytes, a call returns in time and memory that are bounded by
// the length of the file and kMaxJpegPixels. libjpeg's own way of failing, longjmp, does not leave
// jpeg.cc and jumps over no C++ object.
//
// Thread-compatible. The bytes are borrowed from Open to the end of Decode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/image.h"

namespace cadre {

inline constexpr int64_t kMaxJpegPixels = int64_t{64} << 20;

struct JpegImage {
  ImageSize size;
  int64_t channels = 0;
  std::vector<uint8_t> pixels;

  ImageView view() const { return {.pixels = pixels, .size = size, .channels = channels}; }
};

class JpegReader {
 public:
  JpegReader();
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Reads the header. Errors: DataLoss for what is no JPEG, is cut short, or claims more pixels
  // than its bytes can hold; InvalidArgument for what we do not read (CMYK, arithmetic coding, more
  // than kMaxJpegPixels).
  absl::StatusOr<ImageSize> Open(std::span<const std::byte> file);

  // Decodes what Open opened, as grey (1 channel) or RGB (3), each side scaled by eighths / 8 and
  // rounded up. Scaling happens on the coefficients and costs less than decoding whole.
  // Requires: the last Open succeeded and was not followed by a Decode; eighths is 1, 2, 4 or 8.
  // Errors: DataLoss for damaged or missing data.
  absl::Status Decode(int channels, int eighths, JpegImage& image);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cadre
