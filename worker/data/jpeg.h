// Reads JPEG files with libjpeg-turbo: gray and color, baseline and progressive.
//
//   JpegReader reader;
//   CADRE_ASSIGN_OR_RETURN(const ImageSize size, reader.Open(bytes));
//   CADRE_RETURN_IF_ERROR(reader.Decode(3, 8, image));
//
// Files may be hostile: for any input, time and memory of a call are bounded by the length of the
// file and kMaxJpegPixels. libjpeg reports errors by longjmp; that stays within jpeg.cc and skips
// no destructor.
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

  // Reads the header. Errors: DataLoss for a file that is not a JPEG, is truncated, or claims more
  // pixels than its bytes can contain; InvalidArgument for unsupported files (CMYK, arithmetic
  // coding, more than kMaxJpegPixels).
  absl::StatusOr<ImageSize> Open(std::span<const std::byte> file);

  // Decodes the opened image as gray (1 channel) or RGB (3), each side scaled by eighths / 8 and
  // rounded up. Scaling in the frequency domain costs less than decoding at full size. With `part`,
  // which refers to the image at full size, only the pixels in it and up to two around it have
  // values, and most of the work for the others is left out: the image has the same size, the other
  // pixels are unspecified.
  // Requires: the last Open succeeded, and no Decode followed it; eighths is 1, 2, 4 or 8.
  // Errors: DataLoss for damaged or missing data in what is decoded.
  absl::Status Decode(int channels, int eighths, JpegImage& image, const ImageRect* part = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cadre
