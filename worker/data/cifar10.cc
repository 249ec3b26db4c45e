// The whole split is kept in memory as bytes, 150 MB for training; samples are cropped and
// normalized on request, because augmentation differs between epochs.
#include "worker/data/cifar10.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/status.h"
#include "worker/data/augmentation.h"
#include "worker/data/dataset_kinds.h"

namespace cadre {
namespace {

// The published files have 30,730,000 bytes each.
constexpr int64_t kMaxCifarFileBytes = int64_t{1} << 30;
constexpr int64_t kPlaneBytes = kCifarSide * kCifarSide;

class Cifar10Dataset final : public ImageDataset {
 public:
  Cifar10Dataset(CifarImages images, const ImageTransform& transform)
      : ImageDataset(transform.sample_shape()), images_(std::move(images)), transform_(transform) {}

  int64_t size() const override { return images_.labels.size(); }

 private:
  int32_t Label(int64_t index) const override { return images_.labels[index]; }
  absl::Status ReadImages(std::span<const SampleRef> samples,
                          std::span<float> inputs) const override {
    for (size_t i = 0; i < samples.size(); ++i) {
      const ImageView image{
          .pixels = std::span(images_.pixels)
                        .subspan(samples[i].index * kCifarPixelBytes, kCifarPixelBytes),
          .size = {.height = kCifarSide, .width = kCifarSide},
          .channels = kCifarChannels};
      transform_.Apply(image, image.size, transform_.ChooseCrop(image.size, samples[i]),
                       InputOf(inputs, i));
    }
    return absl::OkStatus();
  }

  const CifarImages images_;
  const ImageTransform transform_;
};

std::vector<std::string> CifarFiles(const std::string& directory, Split split) {
  if (split == Split::kTest) return {absl::StrCat(directory, "/test_batch.bin")};
  std::vector<std::string> files;
  for (int i = 1; i <= 5; ++i) files.push_back(absl::StrCat(directory, "/data_batch_", i, ".bin"));
  return files;
}

}  // namespace

absl::Status ParseCifar10(const std::string& name, std::span<const std::byte> file,
                          CifarImages& images) {
  const int64_t size = std::ssize(file);
  const absl::string_view first(reinterpret_cast<const char*>(file.data()),
                                std::min(file.size(), kFormatBytes));
  const int64_t records = size / kCifarRecordBytes;
  if (size == 0 || size % kCifarRecordBytes != 0) {
    return absl::DataLossError(absl::StrCat(name, ": has ", size, " bytes, which are ", records,
                                            " records of ", kCifarRecordBytes, " bytes and ",
                                            size % kCifarRecordBytes,
                                            " more; the file seems truncated", FormatNote(first)));
  }
  // All labels are checked before the first record is appended.
  for (int64_t i = 0; i < records; ++i) {
    const auto label = std::to_integer<int>(file[i * kCifarRecordBytes]);
    if (label >= kCifarClasses) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": label ", label, " of record ", i, " at offset ", i * kCifarRecordBytes,
          " is not between 0 and ", kCifarClasses - 1, FormatNote(first)));
    }
  }
  images.labels.reserve(images.labels.size() + records);
  images.pixels.reserve(images.pixels.size() + records * kCifarPixelBytes);
  for (int64_t i = 0; i < records; ++i) {
    const auto record = file.subspan(i * kCifarRecordBytes, kCifarRecordBytes);
    images.labels.push_back(std::to_integer<int32_t>(record[0]));
    // Planes become interleaved channels.
    for (int64_t pixel = 0; pixel < kPlaneBytes; ++pixel) {
      for (int64_t c = 0; c < kCifarChannels; ++c) {
        images.pixels.push_back(std::to_integer<uint8_t>(record[1 + c * kPlaneBytes + pixel]));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const v1::Cifar10& data, Split split,
                                                     const DatasetNeeds& needs) {
  CADRE_ASSIGN_OR_RETURN(
      const ImageTransform transform,
      ImageTransform::Make(data.augmentation(), needs.sample_shape, split, needs.seed));
  if (transform.channels() != kCifarChannels || needs.classes < kCifarClasses) {
    return absl::InvalidArgumentError(absl::StrCat(
        data.directory(), ": CIFAR-10 has 3 channels and 10 classes, but the model has ",
        transform.channels(), " and ", needs.classes));
  }
  CifarImages images;
  for (const std::string& file : CifarFiles(data.directory(), split)) {
    CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadFile(file, kMaxCifarFileBytes, needs.files));
    CADRE_RETURN_IF_ERROR(ParseCifar10(file, std::as_bytes(std::span(bytes)), images));
  }
  return std::make_unique<Cifar10Dataset>(std::move(images), transform);
}

}  // namespace cadre
