// A JPEG file in memory, as grey and as colour, whole and scaled: an error or an image of the size
// that was promised.
#include <glog/logging.h>

#include "tests/fuzz/target.h"
#include "worker/data/jpeg.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  cadre::JpegReader reader;
  cadre::JpegImage image;
  for (const int channels : {1, 3}) {
    for (const int eighths : {1, 2, 4, 8}) {
      const absl::StatusOr<cadre::ImageSize> full = reader.Open(bytes);
      if (!full.ok()) return 0;
      CHECK_LE(full->height * full->width, cadre::kMaxJpegPixels);
      if (!reader.Decode(channels, eighths, image).ok()) continue;
      CHECK_EQ(image.size.height, (full->height * eighths + 7) / 8);
      CHECK_EQ(image.size.width, (full->width * eighths + 7) / 8);
      CHECK_EQ(std::ssize(image.pixels), image.size.height * image.size.width * channels);
    }
  }
  return 0;
}
