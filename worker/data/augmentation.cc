// Random crops as in Inception's training (Szegedy et al., CVPR 2015, section 6): area uniform in
// [8 %, 100 %] of the image, logarithm of the aspect ratio uniform up to 4/3, a crop that does not
// fit is drawn again. PyTorch's RandomResizedCrop has the same defaults.
//
// Every random number is addressed by (seed, epoch, sample, draw). So a sample does not depend on
// which thread or rank loads it, or on how many numbers another sample has drawn. The C library's
// exp and log are avoided because their last bits differ between implementations, and a crop
// border that rounds differently would change the sample.
//
// Resampling is separable: for every output row and column, `Taps` holds the two source elements
// and the weight of the second. Each output row mixes two source rows, which the compiler
// vectorizes, and then columns of the result, in the pass that also normalizes and mirrors.
#include "worker/data/augmentation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr double kMinArea = 0.08;
constexpr double kMaxAspect = 4.0 / 3;
constexpr double kMaxLogAspect = 0.28768207245178092;  // log(4/3)
// Number of random crops that are tried before the center is used.
constexpr int kTries = 10;

// Addresses of the random numbers of one sample in one epoch.
constexpr uint64_t kDrawsPerEpoch = 64;
constexpr uint64_t kDrawsPerTry = 4;
enum Draw : uint64_t { kFlip = kTries * kDrawsPerTry, kShiftY, kShiftX };

// exp by its power series; for |x| < 0.3 the tail after x^13 is below 1e-17.
double Exponential(double x) {
  double sum = 1;
  for (int k = 13; k >= 1; --k) sum = 1 + sum * x / k;
  return sum;
}

// The random numbers of one sample in one epoch.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, const SampleRef& sample) : seed_(seed), sample_(sample) {}

  double Uniform(uint64_t draw) const {
    return RandomUniform(seed_, RandomStream::kAugmentation, sample_.index,
                         sample_.epoch * kDrawsPerEpoch + draw);
  }
  // An integer in [0, bound).
  int64_t Below(int64_t bound, uint64_t draw) const {
    const int64_t value = Uniform(draw) * bound;
    return std::min(value, bound - 1);
  }

 private:
  const uint64_t seed_;
  const SampleRef sample_;
};

ImageRect Centered(const ImageSize& size, double height, double width) {
  return {.top = (size.height - height) / 2,
          .left = (size.width - width) / 2,
          .height = height,
          .width = width};
}

// Sources of the elements of an output row or column: element i mixes two neighbors.
struct Taps {
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  std::vector<float> second_weight;
};

// Resamples [begin, begin + length) of `available` elements to `extent`; centers of pixels match.
Taps MakeTaps(double begin, double length, int64_t extent, int64_t available) {
  Taps taps;
  const double step = length / extent;
  const double last = available - 1;
  for (int64_t i = 0; i < extent; ++i) {
    const double position = std::clamp(begin + (i + 0.5) * step - 0.5, 0.0, last);
    const int64_t first = position;
    taps.first.push_back(first);
    taps.second.push_back(std::min(first + 1, available - 1));
    taps.second_weight.push_back(position - first);
  }
  return taps;
}

// Mixes two rows of bytes into out[0, n).
void MixRows(const uint8_t* upper, const uint8_t* lower, float lower_weight, int64_t n,
             float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float top = upper[i];
    out[i] = top + lower_weight * (static_cast<float>(lower[i]) - top);
  }
}

// Columns [begin, end) of a mixed row, whose first element is element `from` of the image's row.
// They are normalized and written from `out` on, every one `step` elements after the one before.
// The number of channels is a template parameter so that the inner loop unrolls.
template <int64_t Channels>
void ResampleRow(const float* row, int64_t from, const Taps& taps, int64_t begin, int64_t end,
                 const Normalization& normalization, int64_t step, float* out) {
  for (int64_t x = begin; x < end; ++x, out += step) {
    const float* left = row + (taps.first[x] * Channels - from);
    const float* right = row + (taps.second[x] * Channels - from);
    const float weight = taps.second_weight[x];
    for (int64_t c = 0; c < Channels; ++c) {
      const float value = left[c] + weight * (right[c] - left[c]);
      out[c] = value * normalization.factor[c] + normalization.shift[c];
    }
  }
}

absl::Status CheckPerChannel(absl::string_view name, int given, int64_t channels) {
  if (given == 0 || given == channels) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("augmentation.", name, " has ", given,
                                                 " values, but the model's input has ", channels,
                                                 " channels"));
}

}  // namespace

absl::StatusOr<ImageTransform> ImageTransform::Make(const v1::Augmentation& augmentation,
                                                    const Shape& sample_shape, Split split,
                                                    uint64_t seed) {
  if (sample_shape.rank() != 3 || (sample_shape[2] != 1 && sample_shape[2] != 3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("images have 1 or 3 channels, but a sample of the model's input is ",
                     sample_shape.ToString()));
  }
  const int64_t channels = sample_shape[2];
  CADRE_RETURN_IF_ERROR(CheckPerChannel("mean", augmentation.mean_size(), channels));
  CADRE_RETURN_IF_ERROR(CheckPerChannel("stddev", augmentation.stddev_size(), channels));
  if (augmentation.random_resized_crop() && augmentation.crop_padding() > 0) {
    return absl::InvalidArgumentError(
        "augmentation: random_resized_crop and crop_padding cannot be combined");
  }
  ImageTransform transform;
  transform.shape_ = sample_shape;
  transform.seed_ = seed;
  if (split == Split::kTrain) {
    transform.random_resized_crop_ = augmentation.random_resized_crop();
    transform.flip_ = augmentation.flip();
    transform.crop_padding_ = augmentation.crop_padding();
  }
  for (int c = 0; c < channels; ++c) {
    const float mean = augmentation.mean_size() > 0 ? augmentation.mean(c) : 0.0F;
    const float stddev = augmentation.stddev_size() > 0 ? augmentation.stddev(c) : 1.0F;
    if (!(stddev > 0) || !std::isfinite(stddev) || !std::isfinite(mean)) {
      return absl::InvalidArgumentError(absl::StrCat("augmentation: mean ", mean, " and stddev ",
                                                     stddev, " of channel ", c,
                                                     " must be finite, and stddev positive"));
    }
    transform.normalization_.factor[c] = 1.0F / (255.0F * stddev);
    transform.normalization_.shift[c] = -mean / stddev;
  }
  return transform;
}

Crop ImageTransform::ChooseCrop(const ImageSize& size, const SampleRef& sample) const {
  const SampleRandom random(seed_, sample);
  Crop crop{.rect = random_resized_crop_ ? RandomCrop(size, sample) : CenterCrop(size)};
  if (crop_padding_ > 0) {
    crop.shift_y = random.Below(2 * crop_padding_ + 1, kShiftY) - crop_padding_;
    crop.shift_x = random.Below(2 * crop_padding_ + 1, kShiftX) - crop_padding_;
  }
  crop.mirrored = flip_ && random.Uniform(kFlip) < 0.5;
  return crop;
}

ImageRect ImageTransform::CenterCrop(const ImageSize& size) const {
  const double height = size.height;
  const double width = size.width;
  if (size == ImageSize{this->height(), this->width()}) return {.height = height, .width = width};
  // The size to which the whole image would be scaled: 256 pixels for an input of 224.
  const auto scaled = [](double extent) { return std::floor(extent * 256 / 224 + 0.5); };
  // `scale` source pixels make one of the output; the image covers the scaled size in both
  // directions.
  const double scale = std::min(height / scaled(this->height()), width / scaled(this->width()));
  return Centered(size, this->height() * scale, this->width() * scale);
}

ImageRect ImageTransform::RandomCrop(const ImageSize& size, const SampleRef& sample) const {
  const SampleRandom random(seed_, sample);
  const double height = size.height;
  const double width = size.width;
  for (uint64_t i = 0; i < kTries; ++i) {
    const uint64_t draw = i * kDrawsPerTry;
    const double area = height * width * (kMinArea + (1 - kMinArea) * random.Uniform(draw));
    const double aspect = Exponential((2 * random.Uniform(draw + 1) - 1) * kMaxLogAspect);
    const double wide = std::floor(std::sqrt(area * aspect) + 0.5);
    const double high = std::floor(std::sqrt(area / aspect) + 0.5);
    if (wide < 1 || high < 1 || wide > width || high > height) continue;
    const double top = random.Below(height - high + 1, draw + 2);
    const double left = random.Below(width - wide + 1, draw + 3);
    return {.top = top, .left = left, .height = high, .width = wide};
  }
  // The image is very long: as much of its center as the aspect ratio allows.
  const double wide = std::clamp(std::floor(height * kMaxAspect + 0.5), 1.0, width);
  const double high = std::clamp(std::floor(width * kMaxAspect + 0.5), 1.0, height);
  return Centered(size, high, wide);
}

void ImageTransform::Apply(const ImageView& image, const ImageSize& full, const Crop& crop,
                           std::span<float> sample) const {
  const double full_height = full.height;
  const double full_width = full.width;
  const double scale_y = image.size.height / full_height;
  const double scale_x = image.size.width / full_width;
  const ImageRect& rect = crop.rect;
  const Taps rows =
      MakeTaps(rect.top * scale_y, rect.height * scale_y, height(), image.size.height);
  const Taps columns =
      MakeTaps(rect.left * scale_x, rect.width * scale_x, width(), image.size.width);
  // Output columns [begin, end) come from the image, the others are padding.
  const int64_t begin = std::clamp<int64_t>(-crop.shift_x, 0, width());
  const int64_t end = std::clamp<int64_t>(width() - crop.shift_x, 0, width());
  const int64_t row_bytes = image.size.width * image.channels;
  // The elements of the source rows that the columns mix.
  const int64_t from = columns.first.front() * image.channels;
  const int64_t mixed_size = (columns.second.back() + 1) * image.channels - from;
  std::vector<float> mixed(mixed_size);
  const auto resample = image.channels == 1 ? ResampleRow<1> : ResampleRow<3>;
  for (int64_t y = 0; y < height(); ++y) {
    float* const out = sample.data() + y * width() * image.channels;
    const int64_t source = y + crop.shift_y;
    const bool inside = source >= 0 && source < height();
    if (!inside || begin > 0 || end < width()) {
      for (int64_t i = 0; i < width() * image.channels; ++i) {
        out[i] = normalization_.shift[i % image.channels];
      }
    }
    if (!inside || begin == end) continue;
    MixRows(image.pixels.data() + rows.first[source] * row_bytes + from,
            image.pixels.data() + rows.second[source] * row_bytes + from,
            rows.second_weight[source], mixed_size, mixed.data());
    const int64_t first = crop.mirrored ? width() - 1 - begin : begin;
    resample(mixed.data(), from, columns, begin + crop.shift_x, end + crop.shift_x, normalization_,
             crop.mirrored ? -image.channels : image.channels, out + first * image.channels);
  }
}

}  // namespace cadre
