#include "worker/data/augmentation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace cadre {
namespace {

// The share of an image's area that a random crop takes, its aspect, and how often we draw before
// we take the middle.
constexpr double kMinArea = 0.08;
constexpr double kMaxLogAspect = 0.28768207245178092;  // log(4/3)
constexpr int kTries = 10;
constexpr double kMaxAspect = 4.0 / 3;

// Numbers that one sample may draw in one epoch, and which is which.
constexpr uint64_t kDrawsPerEpoch = 64;
constexpr uint64_t kDrawsPerTry = 4;
enum Draw : uint64_t { kFlip = kTries * kDrawsPerTry, kShiftY, kShiftX };

// exp by its power series; for |x| < 0.3 the tail after x^13 is below 1e-17.
double Exponential(double x) {
  double sum = 1;
  for (int k = 13; k >= 1; --k) sum = 1 + sum * x / k;
  return sum;
}

// The numbers of one sample in one epoch.
class Dice {
 public:
  Dice(uint64_t seed, const SampleRef& sample) : seed_(seed), sample_(sample) {}

  double Uniform(uint64_t draw) const {
    return RandomUniform(seed_, RandomStream::kAugmentation, sample_.index,
                         static_cast<uint64_t>(sample_.epoch) * kDrawsPerEpoch + draw);
  }
  // 0 ... bound - 1.
  int64_t Below(int64_t bound, uint64_t draw) const {
    const auto value = static_cast<int64_t>(Uniform(draw) * static_cast<double>(bound));
    return std::min(value, bound - 1);
  }

 private:
  const uint64_t seed_;
  const SampleRef sample_;
};

ImageRect Centred(const ImageSize& size, double height, double width) {
  return {.top = (static_cast<double>(size.height) - height) / 2,
          .left = (static_cast<double>(size.width) - width) / 2,
          .height = height,
          .width = width};
}

// Where the elements of one output row or column come from: element i is a mix of two neighbours.
struct Taps {
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  std::vector<float> second_weight;
};

// `extent` elements out of [begin, begin + length) of `available` ones; centre to centre.
Taps MakeTaps(double begin, double length, int64_t extent, int64_t available) {
  Taps taps;
  const double step = length / static_cast<double>(extent);
  for (int64_t i = 0; i < extent; ++i) {
    const double at = std::clamp(begin + (static_cast<double>(i) + 0.5) * step - 0.5, 0.0,
                                 static_cast<double>(available - 1));
    const auto first = static_cast<int64_t>(at);
    taps.first.push_back(first);
    taps.second.push_back(std::min(first + 1, available - 1));
    taps.second_weight.push_back(static_cast<float>(at - static_cast<double>(first)));
  }
  return taps;
}

// Columns [begin, end) of one row of the output. `upper` and `lower` are rows of the image, mixed
// by `lower_weight`. The number of channels is a template parameter so that the inner loop unrolls.
template <int64_t Channels>
void ResampleRow(const uint8_t* upper, const uint8_t* lower, float lower_weight, const Taps& taps,
                 int64_t begin, int64_t end, float* out) {
  for (int64_t x = begin; x < end; ++x) {
    const auto i = static_cast<size_t>(x);
    const int64_t left = taps.first[i] * Channels;
    const int64_t right = taps.second[i] * Channels;
    const float weight = taps.second_weight[i];
    for (int64_t c = 0; c < Channels; ++c) {
      const float top =
          upper[left + c] + weight * static_cast<float>(upper[right + c] - upper[left + c]);
      const float bottom =
          lower[left + c] + weight * static_cast<float>(lower[right + c] - lower[left + c]);
      *out++ = top + lower_weight * (bottom - top);
    }
  }
}

void Mirror(float* row, int64_t width, int64_t channels) {
  for (int64_t left = 0, right = width - 1; left < right; ++left, --right) {
    std::swap_ranges(row + left * channels, row + (left + 1) * channels, row + right * channels);
  }
}

absl::Status CheckPerChannel(absl::string_view name, int given, int64_t channels) {
  if (given == 0 || given == channels) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("augmentation.", name, " has ", given,
                                                 " values; the model's input has ", channels,
                                                 " channels"));
}

}  // namespace

absl::StatusOr<ImageTransform> ImageTransform::Make(const v1::Augmentation& augmentation,
                                                    const Shape& sample_shape, Split split,
                                                    uint64_t seed) {
  if (sample_shape.rank() != 3 || (sample_shape[2] != 1 && sample_shape[2] != 3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("images have 1 or 3 channels; the model's input is ", sample_shape.ToString(),
                     " a sample"));
  }
  const int64_t channels = sample_shape[2];
  for (const absl::Status& status :
       {CheckPerChannel("mean", augmentation.mean_size(), channels),
        CheckPerChannel("stddev", augmentation.stddev_size(), channels)}) {
    if (!status.ok()) return status;
  }
  if (augmentation.random_resized_crop() && augmentation.crop_padding() > 0) {
    return absl::InvalidArgumentError(
        "augmentation: random_resized_crop and crop_padding do not go together");
  }
  ImageTransform transform;
  transform.height_ = sample_shape[0];
  transform.width_ = sample_shape[1];
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
                                                     "; wanted are numbers, stddev above 0"));
    }
    transform.normalise_.push_back({.factor = 1.0F / (255.0F * stddev), .shift = -mean / stddev});
  }
  return transform;
}

Crop ImageTransform::Place(const ImageSize& size, const SampleRef& sample) const {
  const Dice dice(seed_, sample);
  Crop placement;
  placement.rect = random_resized_crop_ ? RandomCrop(size, sample) : Middle(size);
  if (crop_padding_ > 0) {
    placement.shift_y = dice.Below(2 * crop_padding_ + 1, kShiftY) - crop_padding_;
    placement.shift_x = dice.Below(2 * crop_padding_ + 1, kShiftX) - crop_padding_;
  }
  placement.mirrored = flip_ && dice.Uniform(kFlip) < 0.5;
  return placement;
}

ImageRect ImageTransform::Middle(const ImageSize& size) const {
  const auto height = static_cast<double>(size.height);
  const auto width = static_cast<double>(size.width);
  if (size == ImageSize{height_, width_}) return {.height = height, .width = width};
  const auto around = [](int64_t extent) {
    return std::floor(static_cast<double>(extent) * 256 / 224 + 0.5);
  };
  // The image is scaled until both sides reach their goal; `scale` source pixels make one of ours.
  const double scale = std::min(height / around(height_), width / around(width_));
  return Centred(size, static_cast<double>(height_) * scale, static_cast<double>(width_) * scale);
}

ImageRect ImageTransform::RandomCrop(const ImageSize& size, const SampleRef& sample) const {
  const Dice dice(seed_, sample);
  const auto height = static_cast<double>(size.height);
  const auto width = static_cast<double>(size.width);
  for (uint64_t i = 0; i < kTries; ++i) {
    const uint64_t draw = i * kDrawsPerTry;
    const double area = height * width * (kMinArea + (1 - kMinArea) * dice.Uniform(draw));
    const double aspect = Exponential((2 * dice.Uniform(draw + 1) - 1) * kMaxLogAspect);
    const double wide = std::floor(std::sqrt(area * aspect) + 0.5);
    const double high = std::floor(std::sqrt(area / aspect) + 0.5);
    if (wide < 1 || high < 1 || wide > width || high > height) continue;
    const auto spare_y = static_cast<int64_t>(height - high) + 1;
    const auto spare_x = static_cast<int64_t>(width - wide) + 1;
    return {.top = static_cast<double>(dice.Below(spare_y, draw + 2)),
            .left = static_cast<double>(dice.Below(spare_x, draw + 3)),
            .height = high,
            .width = wide};
  }
  // A very long image: as much of its middle as the aspect allows.
  const double wide = std::clamp(std::floor(height * kMaxAspect + 0.5), 1.0, width);
  const double high = std::clamp(std::floor(width * kMaxAspect + 0.5), 1.0, height);
  return Centred(size, high, wide);
}

void ImageTransform::Apply(const ImageView& image, const ImageSize& full, const Crop& placement,
                           std::span<float> sample) const {
  const double scale_y = static_cast<double>(image.size.height) / static_cast<double>(full.height);
  const double scale_x = static_cast<double>(image.size.width) / static_cast<double>(full.width);
  const ImageRect& rect = placement.rect;
  const Taps rows = MakeTaps(rect.top * scale_y, rect.height * scale_y, height_, image.size.height);
  const Taps columns =
      MakeTaps(rect.left * scale_x, rect.width * scale_x, width_, image.size.width);
  // Output columns [begin, end) come from the image, the others are padding.
  const int64_t begin = std::clamp<int64_t>(-placement.shift_x, 0, width_);
  const int64_t end = std::clamp<int64_t>(width_ - placement.shift_x, 0, width_);
  const int64_t row_bytes = image.size.width * image.channels;
  for (int64_t y = 0; y < height_; ++y) {
    float* out = sample.data() + y * width_ * image.channels;
    std::fill_n(out, width_ * image.channels, 0.0F);
    const int64_t from = y + placement.shift_y;
    if (from >= 0 && from < height_) {
      const auto i = static_cast<size_t>(from);
      const auto resample = image.channels == 1 ? ResampleRow<1> : ResampleRow<3>;
      resample(image.pixels.data() + rows.first[i] * row_bytes,
               image.pixels.data() + rows.second[i] * row_bytes, rows.second_weight[i], columns,
               begin + placement.shift_x, end + placement.shift_x, out + begin * image.channels);
    }
    if (placement.mirrored) Mirror(out, width_, image.channels);
    for (int64_t x = 0; x < width_; ++x) {
      for (const Affine& affine : normalise_) {
        *out = *out * affine.factor + affine.shift;
        ++out;
      }
    }
  }
}

}  // namespace cadre
