// From decoded images to samples: which part of an image, mirrored or not, and with what
// normalisation.
//
//   const Crop placement = transform.Place({375, 500}, sample);
//   transform.Apply(image, {375, 500}, placement, inputs);
//
// Test images, and training images without random_resized_crop, are resized so that they cover the
// input's size times 256/224, and cropped in the middle; one that has the input's size already is
// taken as it is. Resizing is bilinear, without a low-pass before it.
//
// Everything random is a function of (seed, epoch, sample index); plain sums and products of
// doubles, so that it has the same bits on every machine.
//
// Thread-safe (a value).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"
#include "worker/data/dataset.h"
#include "worker/data/image.h"

namespace cadre {

// How an image becomes a sample.
struct Crop {
  // The part that is resized to the input's size.
  ImageRect rect;
  // Then moved up and to the left by so many elements, zeros coming in behind.
  int64_t shift_y = 0;
  int64_t shift_x = 0;
  // Then mirrored, left for right.
  bool mirrored = false;
};

class ImageTransform {
 public:
  // `sample_shape` is [height, width, channels].
  // Errors: InvalidArgument naming the field of `augmentation`.
  static absl::StatusOr<ImageTransform> Make(const v1::Augmentation& augmentation,
                                             const Shape& sample_shape, Split split, uint64_t seed);

  // Requires: size.height, size.width > 0. Guarantees: the rect lies inside the image.
  Crop Place(const ImageSize& size, const SampleRef& sample) const;

  // The image may be a scaled-down one of `full`, which the placement is about.
  // Requires: image.channels is the sample's; `sample` has the sample's elements.
  void Apply(const ImageView& image, const ImageSize& full, const Crop& placement,
             std::span<float> sample) const;

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t channels() const { return normalise_.size(); }

 private:
  // A byte v of a channel becomes v * factor + shift.
  struct Affine {
    float factor = 1;
    float shift = 0;
  };

  ImageRect Middle(const ImageSize& size) const;
  ImageRect RandomCrop(const ImageSize& size, const SampleRef& sample) const;

  uint64_t seed_ = 0;
  bool random_resized_crop_ = false;
  bool flip_ = false;
  int64_t crop_padding_ = 0;
  int64_t height_ = 0;
  int64_t width_ = 0;
  // One per channel.
  std::vector<Affine> normalise_;
};

}  // namespace cadre
