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

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Images are [samples, height, width], or [samples, channels, height, width]; `sample` is [height,
// width, channels].
absl::Status CheckImages(const std::string& path, const IdxArray& images, const Shape& sample) {
  std::vector<int64_t> expected = {sample[2], sample[0], sample[1]};
  if (images.dims.size() == expected.size() && sample[2] == 1) expected.erase(expected.begin());
  if (images.dims.size() != expected.size() + 1 ||
      !std::equal(expected.begin(), expected.end(), images.dims.begin() + 1)) {
    return Wrong(path,
                 absl::StrCat("holds ", Shape(images.dims).ToString(), "; the model's input is ",
                              sample.ToString(), " (height, width, channels) a sample"));
  }
  if (images.dims[0] == 0) return Wrong(path, "holds no samples");
  return absl::OkStatus();
}

absl::Status CheckLabels(const std::string& path, const IdxArray& labels, int64_t samples,
                         const std::string& images_path, int64_t classes) {
  if (labels.dims.size() != 1) {
    return Wrong(path,
                 absl::StrCat("holds ", Shape(labels.dims).ToString(), "; labels are a list"));
  }
  if (labels.dims[0] != samples) {
    return Wrong(path, absl::StrCat("holds ", labels.dims[0], " labels; ", images_path, " holds ",
                                    samples, " images"));
  }
  for (size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] < classes) continue;
    return Wrong(path, absl::StrCat("label ", labels.data[i], " of sample ", i,
                                    " is out of range; the model tells ", classes, " apart"));
  }
  return absl::OkStatus();
}

// Samples with channels first become samples with channels last.
std::vector<uint8_t> ChannelsLast(std::vector<uint8_t> pixels, const Shape& sample) {
  const auto channels = static_cast<size_t>(sample[2]);
  if (channels == 1) return pixels;
  const auto elements = static_cast<size_t>(sample.elements());
  const size_t plane = elements / channels;
  std::vector<uint8_t> moved(pixels.size());
  for (size_t i = 0; i < pixels.size(); ++i) {
    const size_t within = i % elements;
    moved[i - within + within % plane * channels + within / plane] = pixels[i];
  }
  return moved;
}

// The value of each of the 256 pixels.
std::array<float, 256> Normalised(float mean, float stddev) {
  if (stddev == 0.0F) stddev = 1.0F;
  std::array<float, 256> values{};
  for (size_t p = 0; p < values.size(); ++p) {
    values[p] = (static_cast<float>(p) / 255.0F - mean) / stddev;
  }
  return values;
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(IdxArray images, const IdxArray& labels, const Shape& shape,
             const std::array<float, 256>& values)
      : images_(ChannelsLast(std::move(images.data), shape)),
        labels_(labels.data.begin(), labels.data.end()),
        shape_(shape),
        values_(values) {}

  int64_t size() const override { return labels_.size(); }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    return CopyLabels(samples, labels_, labels);
  }

 private:
  // A byte per pixel, samples one after another.
  const std::vector<uint8_t> images_;
  const std::vector<int32_t> labels_;
  const Shape shape_;
  const std::array<float, 256> values_;
};

absl::Status IdxDataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                             std::span<int32_t> labels) const {
  if (!labels.empty()) CADRE_RETURN_IF_ERROR(GetLabels(samples, labels));
  const auto elements = static_cast<size_t>(shape_.elements());
  auto out = inputs.begin();
  for (const SampleRef& sample : samples) {
    CADRE_RETURN_IF_ERROR(CheckSample(sample.index, size()));
    const auto pixels =
        std::span(images_).subspan(static_cast<size_t>(sample.index) * elements, elements);
    out = std::transform(pixels.begin(), pixels.end(), out,
                         [this](uint8_t pixel) { return values_[pixel]; });
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::IdxFiles& files, Split split,
                                                        const DatasetNeeds& needs) {
  const bool train = split == Split::kTrain;
  const std::string& images_path = train ? files.train_images() : files.test_images();
  const std::string& labels_path = train ? files.train_labels() : files.test_labels();
  CADRE_ASSIGN_OR_RETURN(IdxArray images, ReadIdx(images_path));
  CADRE_ASSIGN_OR_RETURN(const IdxArray labels, ReadIdx(labels_path));
  CADRE_RETURN_IF_ERROR(CheckImages(images_path, images, needs.sample_shape));
  CADRE_RETURN_IF_ERROR(
      CheckLabels(labels_path, labels, images.dims[0], images_path, needs.classes));
  return std::make_unique<IdxDataset>(std::move(images), labels, needs.sample_shape,
                                      Normalised(files.mean(), files.stddev()));
}

}  // namespace cadre
