// Reads a sample in three steps: read the file, decode the part that is cropped at the lowest
// sufficient resolution, and crop and normalize it (augmentation.cc). If one of the first two fails
// because of the file, the next sample of the same class takes its place; so the label is right,
// and equal on a rank that only reads labels. All replacements of a sample are deterministic,
// because they depend on the files alone.
#include "worker/data/jpeg_dataset.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/peer_text.h"
#include "base/status.h"
#include "worker/data/dataset_kinds.h"
#include "worker/data/jpeg.h"

namespace cadre {
namespace {

// Number of kinds of unused entries that are named.
constexpr size_t kMaxKinds = 8;

// Whether the error is specific to the sample. Lack of memory or of file descriptors would affect a
// replacement, too.
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

// The smallest scale, in eighths, at which the cropped part is not smaller than the sample.
// Decoding at a lower scale is cheaper.
int ScaleInEighths(const ImageRect& rect, const ImageTransform& transform) {
  for (const int eighths : {1, 2, 4}) {
    if (rect.height * eighths >= 8 * transform.height() &&
        rect.width * eighths >= 8 * transform.width()) {
      return eighths;
    }
  }
  return 8;
}

// Reused for all samples of one call.
struct JpegScratch {
  JpegReader reader;
  JpegImage image;
};

class JpegDataset final : public ImageDataset {
 public:
  JpegDataset(std::unique_ptr<EncodedImages> images, const ImageTransform& transform,
              std::unique_ptr<CorruptSamples> corrupt, std::string left_out)
      : ImageDataset(transform.sample_shape()),
        images_(std::move(images)),
        transform_(transform),
        corrupt_(std::move(corrupt)),
        left_out_(std::move(left_out)) {}

  int64_t size() const override { return images_->labels().size(); }
  int64_t corrupt_samples() const override { return corrupt_->count(); }
  std::string left_out() const override { return left_out_; }

 private:
  int32_t Label(int64_t index) const override { return images_->labels()[index]; }
  absl::Status ReadImages(std::span<const SampleRef> samples,
                          std::span<float> inputs) const override {
    JpegScratch scratch;
    for (size_t i = 0; i < samples.size(); ++i) {
      CADRE_RETURN_IF_ERROR(ReadOrReplace(samples[i], scratch, InputOf(inputs, i)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadOrReplace(const SampleRef& sample, JpegScratch& scratch,
                             std::span<float> input) const;
  // Decodes the file of `index`, with the augmentation of `sample`.
  absl::Status Decode(int64_t index, const SampleRef& sample, JpegScratch& scratch,
                      std::span<float> input) const;
  // The next sample with the same label; the first one follows the last.
  int64_t NextOfClass(int64_t index) const;

  const std::unique_ptr<EncodedImages> images_;
  const ImageTransform transform_;
  const std::unique_ptr<CorruptSamples> corrupt_;
  const std::string left_out_;
};

// Ends at the latest when all samples of the class have been tried.
absl::Status JpegDataset::ReadOrReplace(const SampleRef& sample, JpegScratch& scratch,
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
                                              "; nor any other sample of its class"));
    }
  }
}

absl::Status JpegDataset::Decode(int64_t index, const SampleRef& sample, JpegScratch& scratch,
                                 std::span<float> input) const {
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, images_->Read(index));
  CADRE_ASSIGN_OR_RETURN(const ImageSize size,
                         scratch.reader.Open(std::as_bytes(std::span(bytes))));
  const Crop crop = transform_.ChooseCrop(size, sample);
  CADRE_RETURN_IF_ERROR(scratch.reader.Decode(
      transform_.channels(), ScaleInEighths(crop.rect, transform_), scratch.image, &crop.rect));
  transform_.Apply(scratch.image.view(), size, crop, input);
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

absl::Status CorruptSamples::Add(const std::string& name, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (names_.contains(name)) return absl::OkStatus();
  const std::string what = absl::StrCat("cannot read sample ", name, ": ", why.message());
  if (std::ssize(names_) >= allowed_) {
    return absl::DataLossError(absl::StrCat(what, "; data.corrupt_samples_allowed is ", allowed_));
  }
  names_.insert(name);
  LOG(WARNING) << what << " (" << names_.size() << " of at most " << allowed_ << ")";
  return absl::OkStatus();
}

int64_t CorruptSamples::count() const {
  absl::MutexLock lock(&mutex_);
  return names_.size();
}

std::string ToText(const UnusedEntries& unused) {
  std::vector<std::pair<std::string, int64_t>> kinds(unused.begin(), unused.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  int64_t others = 0;
  for (size_t i = kMaxKinds; i < kinds.size(); ++i) others += kinds[i].second;
  kinds.resize(std::min(kinds.size(), kMaxKinds));
  if (others > 0) kinds.emplace_back("others", others);
  // Endings are parts of the names of files, so they may have any bytes.
  return ShortReason(absl::StrJoin(kinds, ", ", [](std::string* out, const auto& kind) {
    absl::StrAppend(out, kind.first, " (", kind.second, ")");
  }));
}

std::unique_ptr<Dataset> MakeJpegDataset(std::unique_ptr<EncodedImages> images,
                                         const ImageTransform& transform,
                                         std::unique_ptr<CorruptSamples> corrupt,
                                         UnusedEntries unused) {
  if (corrupt->count() > 0) unused["samples that cannot be read"] += corrupt->count();
  std::string left_out = ToText(unused);
  LOG_IF(WARNING, !left_out.empty()) << "not used for training or tests: " << left_out;
  return std::make_unique<JpegDataset>(std::move(images), transform, std::move(corrupt),
                                       std::move(left_out));
}

}  // namespace cadre
