#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/data/augmentation.h"
#include "worker/data/byte_source.h"
#include "worker/data/cifar10.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// A batch file as published has 30,730,000 bytes.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

class Cifar10Dataset final : public Dataset {
 public:
  Cifar10Dataset(CifarImages images, const ImageTransform& transform)
      : images_(std::move(images)),
        transform_(transform),
        shape_{transform.height(), transform.width(), transform.channels()} {}

  int64_t size() const override { return images_.labels.size(); }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    return CopyLabels(samples, images_.labels, labels);
  }

 private:
  ImageView Image(int64_t index) const {
    return {.pixels = std::span(images_.pixels).subspan(index * kCifarPixelBytes, kCifarPixelBytes),
            .size = {.height = kCifarSide, .width = kCifarSide},
            .channels = kCifarChannels};
  }

  const CifarImages images_;
  const ImageTransform transform_;
  const Shape shape_;
};

absl::Status Cifar10Dataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                                 std::span<int32_t> labels) const {
  for (const SampleRef& sample : samples) CADRE_RETURN_IF_ERROR(CheckSample(sample.index, size()));
  if (!labels.empty()) CADRE_RETURN_IF_ERROR(GetLabels(samples, labels));
  const auto elements = static_cast<size_t>(shape_.elements());
  for (size_t i = 0; i < samples.size(); ++i) {
    const ImageView image = Image(samples[i].index);
    transform_.Apply(image, image.size, transform_.Place(image.size, samples[i]),
                     inputs.subspan(i * elements, elements));
  }
  return absl::OkStatus();
}

std::vector<std::string> Files(const std::string& directory, Split split) {
  if (split == Split::kTest) return {absl::StrCat(directory, "/test_batch.bin")};
  std::vector<std::string> files;
  for (int i = 1; i <= 5; ++i) files.push_back(absl::StrCat(directory, "/data_batch_", i, ".bin"));
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const v1::Cifar10& data, Split split,
                                                     const DatasetNeeds& needs) {
  CADRE_ASSIGN_OR_RETURN(
      const ImageTransform transform,
      ImageTransform::Make(data.augmentation(), needs.sample_shape, split, needs.seed));
  if (transform.channels() != kCifarChannels || needs.classes < kCifarClasses) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.directory(), ": CIFAR-10 has 3 channels and 10 classes; the model has ",
                     transform.channels(), " and ", needs.classes));
  }
  CifarImages images;
  std::vector<std::byte> bytes;
  for (const std::string& file : Files(data.directory(), split)) {
    CADRE_RETURN_IF_ERROR(ReadBytes(file, kMaxFileBytes, bytes));
    CADRE_RETURN_IF_ERROR(ParseCifar10(file, bytes, images));
  }
  return std::make_unique<Cifar10Dataset>(std::move(images), transform);
}

}  // namespace cadre
