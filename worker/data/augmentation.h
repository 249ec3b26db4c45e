// Converts decoded images to samples, by cropping, mirroring and normalization.
//
//   const Crop crop = transform.ChooseCrop({375, 500}, sample);
//   transform.Apply(image, {375, 500}, crop, inputs);
//
// Test images, and training images without random_resized_crop, are resized to cover 256/224 of the
// input's size, and cropped in the middle; an image that already has the input's size is not
// resized. Resizing is bilinear, without a low-pass filter.
//
// Everything random is a function of (seed, epoch, sample index), computed by sums and products of
// doubles only, so that it has the same bits on every machine.
//
// Thread-safe (a value).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"
#include "worker/data/dataset.h"
#include "worker/data/image.h"

namespace cadre {

// How an image becomes a sample.
struct Crop {
  // The part of the image that is resized to the input's size.
  ImageRect rect;
  // The result is then shifted up and to the left by so many elements; zeros fill the gap.
  int64_t shift_y = 0;
  int64_t shift_x = 0;
  // It is finally mirrored horizontally.
  bool mirrored = false;
};

// A byte v of channel c becomes v * factor[c] + shift[c].
struct Normalization {
  std::array<float, 3> factor = {1, 1, 1};
  std::array<float, 3> shift = {};
};

class ImageTransform {
 public:
  // `sample_shape` is [height, width, channels].
  // Errors: InvalidArgument naming the field of `augmentation`.
  static absl::StatusOr<ImageTransform> Make(const v1::Augmentation& augmentation,
                                             const Shape& sample_shape, Split split, uint64_t seed);

  // Requires: size.height, size.width > 0. Guarantees: the rect lies inside the image.
  Crop ChooseCrop(const ImageSize& size, const SampleRef& sample) const;

  // Computes the sample. `image` may be a scaled-down version of the image of size `full` to which
  // the crop refers. Requires: image.channels is the sample's; `sample` has the sample's elements.
  void Apply(const ImageView& image, const ImageSize& full, const Crop& crop,
             std::span<float> sample) const;

  const Shape& sample_shape() const { return shape_; }
  int64_t height() const { return shape_[0]; }
  int64_t width() const { return shape_[1]; }
  int64_t channels() const { return shape_[2]; }

 private:
  ImageRect CenterCrop(const ImageSize& size) const;
  ImageRect RandomCrop(const ImageSize& size, const SampleRef& sample) const;

  Shape shape_;
  uint64_t seed_ = 0;
  bool random_resized_crop_ = false;
  bool flip_ = false;
  int64_t crop_padding_ = 0;
  Normalization normalization_;
};

}  // namespace cadre
