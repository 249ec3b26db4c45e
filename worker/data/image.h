// Decoded images as bytes, and parts of images.
//
// Values; thread-compatible.
#pragma once

#include <cstdint>
#include <span>

namespace cadre {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// Bytes by row, column and channel.
struct ImageView {
  std::span<const uint8_t> pixels;
  ImageSize size;
  int64_t channels = 0;
};

// A part of an image, in pixels; borders may lie between pixels.
struct ImageRect {
  double top = 0;
  double left = 0;
  double height = 0;
  double width = 0;
  friend bool operator==(const ImageRect&, const ImageRect&) = default;
};

}  // namespace cadre
