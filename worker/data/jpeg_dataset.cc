#include "worker/data/jpeg_dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/jpeg.h"

namespace cadre {
namespace {

// Whether another sample would do; a full memory or too many open files would spoil that too.
bool IsCorrupt(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

// The least eighths at which the part that is taken is not smaller than the sample.
int Eighths(const ImageRect& rect, const ImageTransform& transform) {
  for (const int eighths : {1, 2, 4}) {
    if (rect.height * eighths >= static_cast<double>(8 * transform.height()) &&
        rect.width * eighths >= static_cast<double>(8 * transform.width())) {
      return eighths;
    }
  }
  return 8;
}

// What one call of Get uses again from sample to sample.
struct Scratch {
  std::vector<std::byte> bytes;
  JpegReader reader;
  JpegImage image;
};

class JpegDataset final : public Dataset {
 public:
  JpegDataset(std::unique_ptr<EncodedImages> images, const ImageTransform& transform,
              std::unique_ptr<CorruptSamples> corrupt)
      : images_(std::move(images)),
        transform_(transform),
        shape_{transform.height(), transform.width(), transform.channels()},
        corrupt_(std::move(corrupt)) {}

  int64_t size() const override { return images_->labels().size(); }
  const Shape& sample_shape() const override { return shape_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const override;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const override {
    return CopyLabels(samples, images_->labels(), labels);
  }
  int64_t corrupt_samples() const override { return corrupt_->count(); }

 private:
  absl::Status GetOne(const SampleRef& sample, Scratch& scratch, std::span<float> input) const;
  // The file of `index` as the sample that was asked for.
  absl::Status Decode(int64_t index, const SampleRef& sample, Scratch& scratch,
                      std::span<float> input) const;
  // The next sample with the same label, from the beginning after the end.
  int64_t NextOfClass(int64_t index) const;

  const std::unique_ptr<EncodedImages> images_;
  const ImageTransform transform_;
  const Shape shape_;
  const std::unique_ptr<CorruptSamples> corrupt_;
};

absl::Status JpegDataset::Get(std::span<const SampleRef> samples, std::span<float> inputs,
                              std::span<int32_t> labels) const {
  for (const SampleRef& sample : samples) CADRE_RETURN_IF_ERROR(CheckSample(sample.index, size()));
  if (!labels.empty()) CADRE_RETURN_IF_ERROR(GetLabels(samples, labels));
  Scratch scratch;
  const auto elements = static_cast<size_t>(shape_.elements());
  for (size_t i = 0; i < samples.size(); ++i) {
    CADRE_RETURN_IF_ERROR(GetOne(samples[i], scratch, inputs.subspan(i * elements, elements)));
  }
  return absl::OkStatus();
}

absl::Status JpegDataset::GetOne(const SampleRef& sample, Scratch& scratch,
                                 std::span<float> input) const {
  for (int64_t index = sample.index;;) {
    const absl::Status status = Decode(index, sample, scratch, input);
    if (status.ok()) return status;
    if (!IsCorrupt(status)) return Annotate(status, images_->Name(index));
    CADRE_RETURN_IF_ERROR(corrupt_->Add(images_->Name(index), status));
    index = NextOfClass(index);
    if (index == sample.index) {
      return absl::DataLossError(absl::StrCat("cannot read sample ", images_->Name(index), ": ",
                                              status.message(),
                                              "; nor any other one of its class"));
    }
  }
}

absl::Status JpegDataset::Decode(int64_t index, const SampleRef& sample, Scratch& scratch,
                                 std::span<float> input) const {
  CADRE_RETURN_IF_ERROR(images_->Read(index, scratch.bytes));
  CADRE_ASSIGN_OR_RETURN(const ImageSize size, scratch.reader.Open(scratch.bytes));
  const Crop placement = transform_.Place(size, sample);
  CADRE_RETURN_IF_ERROR(scratch.reader.Decode(static_cast<int>(transform_.channels()),
                                              Eighths(placement.rect, transform_), scratch.image));
  transform_.Apply(scratch.image.view(), size, placement, input);
  return absl::OkStatus();
}

int64_t JpegDataset::NextOfClass(int64_t index) const {
  const std::vector<int32_t>& labels = images_->labels();
  const int32_t label = labels[index];
  do {
    index = (index + 1) % size();
  } while (labels[index] != label);
  return index;
}

}  // namespace

std::unique_ptr<Dataset> MakeJpegDataset(std::unique_ptr<EncodedImages> images,
                                         const ImageTransform& transform,
                                         std::unique_ptr<CorruptSamples> corrupt) {
  return std::make_unique<JpegDataset>(std::move(images), transform, std::move(corrupt));
}

}  // namespace cadre
