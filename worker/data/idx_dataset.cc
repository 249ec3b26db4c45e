// IDX files, the format of MNIST: one file has the images, one the labels. Both are read into
// memory.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/formats/idx.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

absl::Status BadIdxFile(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Images are [samples, height, width], or [samples, channels, height, width]; `sample` is [height,
// width, channels].
absl::Status CheckImages(const std::string& path, const IdxArray& images, const Shape& sample) {
  std::vector<int64_t> expected = {sample[2], sample[0], sample[1]};
  if (images.dims.size() == expected.size() && sample[2] == 1) expected.erase(expected.begin());
  if (images.dims.size() != expected.size() + 1 ||
      !std::equal(expected.begin(), expected.end(), images.dims.begin() + 1)) {
    return BadIdxFile(path, absl::StrCat("holds ", Shape(images.dims).ToString(),
                                         ", but a sample of the model's input is ",
                                         sample.ToString(), " (height, width, channels)"));
  }
  if (images.dims[0] == 0) return BadIdxFile(path, "holds no samples");
  return absl::OkStatus();
}

absl::Status CheckLabels(const std::string& path, const IdxArray& labels, int64_t samples,
                         const std::string& images_path, int64_t classes) {
  if (labels.dims.size() != 1) {
    return BadIdxFile(path, absl::StrCat("holds ", Shape(labels.dims).ToString(),
                                         ", but labels have one dimension"));
  }
  if (labels.dims[0] != samples) {
    return BadIdxFile(path, absl::StrCat("holds ", labels.dims[0], " labels; ", images_path,
                                         " holds ", samples, " images"));
  }
  for (size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] < classes) continue;
    return BadIdxFile(path, absl::StrCat("label ", labels.data[i], " of sample ", i,
                                         " is out of range; the model has ", classes, " classes"));
  }
  return absl::OkStatus();
}

// Moves the channels of each sample from the first dimension to the last.
std::vector<uint8_t> ChannelsLast(std::vector<uint8_t> pixels, const Shape& sample) {
  const int64_t channels = sample[2];
  if (channels == 1) return pixels;
  const int64_t elements = sample.elements();
  const int64_t plane = elements / channels;
  std::vector<uint8_t> moved(pixels.size());
  for (int64_t i = 0; i < std::ssize(pixels); ++i) {
    const int64_t within = i % elements;
    moved[i - within + within % plane * channels + within / plane] = pixels[i];
  }
  return moved;
}

// The input value of each of the 256 pixel values: a table, because a sample has far more pixels.
std::array<float, 256> NormalizedValues(float mean, float stddev) {
  if (stddev == 0.0F) stddev = 1.0F;
  std::array<float, 256> values{};
  for (int p = 0; p < 256; ++p) values[p] = (p / 255.0F - mean) / stddev;
  return values;
}

class IdxDataset final : public ImageDataset {
 public:
  IdxDataset(IdxArray images, IdxArray labels, const Shape& shape,
             const std::array<float, 256>& values)
      : ImageDataset(shape),
        images_(ChannelsLast(std::move(images.data), shape)),
        labels_(std::move(labels.data)),
        values_(values) {}

  int64_t size() const override { return labels_.size(); }

 private:
  int32_t Label(int64_t index) const override { return labels_[index]; }
  absl::Status ReadImages(std::span<const SampleRef> samples,
                          std::span<float> inputs) const override {
    const int64_t elements = sample_shape().elements();
    auto out = inputs.begin();
    for (const SampleRef& sample : samples) {
      const auto pixels = std::span(images_).subspan(sample.index * elements, elements);
      out = std::transform(pixels.begin(), pixels.end(), out,
                           [this](uint8_t pixel) { return values_[pixel]; });
    }
    return absl::OkStatus();
  }

  // One byte per pixel, samples contiguous.
  const std::vector<uint8_t> images_;
  const std::vector<uint8_t> labels_;
  const std::array<float, 256> values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::IdxFiles& files, Split split,
                                                        const DatasetNeeds& needs) {
  const bool train = split == Split::kTrain;
  const std::string& images_path = train ? files.train_images() : files.test_images();
  const std::string& labels_path = train ? files.train_labels() : files.test_labels();
  CADRE_ASSIGN_OR_RETURN(IdxArray images, ReadIdx(images_path, needs.files));
  CADRE_ASSIGN_OR_RETURN(IdxArray labels, ReadIdx(labels_path, needs.files));
  CADRE_RETURN_IF_ERROR(CheckImages(images_path, images, needs.sample_shape));
  CADRE_RETURN_IF_ERROR(
      CheckLabels(labels_path, labels, images.dims[0], images_path, needs.classes));
  return std::make_unique<IdxDataset>(std::move(images), std::move(labels), needs.sample_shape,
                                      NormalizedValues(files.mean(), files.stddev()));
}

}  // namespace cadre
