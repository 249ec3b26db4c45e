#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/idx.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Images are [samples, height, width], or [samples, channels, height, width].
absl::Status CheckImages(const std::string& path, const IdxArray& images, const Shape& sample) {
  std::vector<int64_t> expected = sample.dims();
  if (images.dims.size() == expected.size() && sample[0] == 1) expected.erase(expected.begin());
  if (images.dims.size() != expected.size() + 1 ||
      !std::equal(expected.begin(), expected.end(), images.dims.begin() + 1)) {
    return Wrong(path, absl::StrCat("holds ", Shape(images.dims).ToString(),
                                    "; the model's input is ", sample.ToString(), " a sample"));
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
  IdxDataset(IdxArray images, IdxArray labels, Shape shape, const std::array<float, 256>& values)
      : images_(std::move(images.data)),
        labels_(std::move(labels.data)),
        shape_(std::move(shape)),
        values_(values) {}

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const int64_t> indices, std::span<float> images,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const int64_t> indices,
                         std::span<int32_t> labels) const override;

 private:
  // As read: a byte per pixel, samples one after another.
  const std::vector<uint8_t> images_;
  const std::vector<uint8_t> labels_;
  const Shape shape_;
  const std::array<float, 256> values_;
};

absl::Status IdxDataset::Get(std::span<const int64_t> indices, std::span<float> images,
                             std::span<int32_t> labels) const {
  CADRE_RETURN_IF_ERROR(GetLabels(indices, labels));
  const auto elements = static_cast<size_t>(shape_.elements());
  auto out = images.begin();
  for (const int64_t index : indices) {
    const auto pixels = std::span(images_).subspan(static_cast<size_t>(index) * elements, elements);
    out = std::transform(pixels.begin(), pixels.end(), out,
                         [this](uint8_t pixel) { return values_[pixel]; });
  }
  return absl::OkStatus();
}

absl::Status IdxDataset::GetLabels(std::span<const int64_t> indices,
                                   std::span<int32_t> labels) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    CADRE_RETURN_IF_ERROR(CheckSample(indices[i], size()));
    labels[i] = labels_[static_cast<size_t>(indices[i])];
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::IdxFiles& files, Split split,
                                                        const Shape& sample_shape,
                                                        int64_t classes) {
  const bool train = split == Split::kTrain;
  const std::string& images_path = train ? files.train_images() : files.test_images();
  const std::string& labels_path = train ? files.train_labels() : files.test_labels();
  CADRE_ASSIGN_OR_RETURN(IdxArray images, ReadIdx(images_path));
  CADRE_ASSIGN_OR_RETURN(IdxArray labels, ReadIdx(labels_path));
  CADRE_RETURN_IF_ERROR(CheckImages(images_path, images, sample_shape));
  CADRE_RETURN_IF_ERROR(CheckLabels(labels_path, labels, images.dims[0], images_path, classes));
  return std::make_unique<IdxDataset>(std::move(images), std::move(labels), sample_shape,
                                      Normalised(files.mean(), files.stddev()));
}

}  // namespace cadre
