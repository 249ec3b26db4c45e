// The kinds of data set that OpenDataset (open_dataset.h) selects from, and what they share.
// Internal to worker/data.
//
// Thread-safe (see dataset.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rooted_files.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/data/dataset.h"

namespace cadre {

// What the run requires of a data set; the same fields for all kinds.
struct DatasetNeeds {
  // Shape of one sample: [height, width, channels], or [length].
  Shape sample_shape;
  // Labels of a sample of tokens: those of its last tokens.
  int64_t labels_per_sample = 0;
  // Labels and tokens must be lower than these.
  int64_t classes = 0;
  int64_t vocabulary = 0;
  uint64_t seed = 0;
  int64_t corrupt_allowed = 0;
  RootedFiles files = RootedFiles::Unrestricted();
};

// A data set of images, each with one label.
class ImageDataset : public Dataset {
 public:
  explicit ImageDataset(const Shape& shape) : shape_(shape) {}

  const Shape& sample_shape() const final { return shape_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const final;
  absl::Status GetLabels(std::span<const SampleRef> samples, std::span<int32_t> labels) const final;

 protected:
  // Elements of sample `i` of a batch.
  std::span<float> InputOf(std::span<float> inputs, int64_t i) const {
    return inputs.subspan(i * shape_.elements(), shape_.elements());
  }

 private:
  // Requires: 0 <= index < size(), here and below.
  virtual int32_t Label(int64_t index) const = 0;
  virtual absl::Status ReadImages(std::span<const SampleRef> samples,
                                  std::span<float> inputs) const = 0;

  const Shape shape_;
};

// A data set of token sequences: the label of a token is the token that follows it.
class SequenceDataset : public Dataset {
 public:
  SequenceDataset(int64_t size, const DatasetNeeds& needs);

  int64_t size() const final { return size_; }
  const Shape& sample_shape() const final { return shape_; }
  int64_t labels_per_sample() const final { return labels_per_sample_; }
  absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                   std::span<int32_t> labels) const final;
  absl::Status GetLabels(std::span<const SampleRef> samples,
                         std::span<int32_t> labels) const final {
    return Get(samples, {}, labels);
  }

 protected:
  int64_t length() const { return shape_[0]; }

 private:
  // Fills `tokens` with the length() + 1 tokens of sample `index`.
  virtual absl::Status ReadTokens(int64_t index, std::span<int64_t> tokens) const = 0;
  // Describes token `t` of sample `index` in messages.
  virtual std::string TokenName(int64_t index, int64_t t) const = 0;
  absl::Status CheckToken(int64_t index, int64_t t, int64_t token, int64_t bound) const;

  const int64_t size_;
  const Shape shape_;
  const int64_t labels_per_sample_;
  const int64_t vocabulary_;
  const int64_t classes_;
};

// Reads both files of the split.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::IdxFiles& files, Split split,
                                                        const DatasetNeeds& needs);
// Reads all files of the split.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const v1::Cifar10& data, Split split,
                                                     const DatasetNeeds& needs);
// Lists the files.
absl::StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const v1::ImageFolder& data, Split split,
                                                         const DatasetNeeds& needs);
// Reads headers and labels.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTarShards(const v1::TarShards& data, Split split,
                                                       const DatasetNeeds& needs);
// Reads the sizes of the files.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokenFiles(const v1::TokenFiles& data, Split split,
                                                        const DatasetNeeds& needs);

// Samples that are a function of (seed, split, index) alone.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticImages(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs);
absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticTokens(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs);

// Whether the name ends in .jpg, .jpeg, .jpe or .jfif, in letters of either case.
bool IsJpegName(absl::string_view name);
// Whether the name ends as that of an image in another format, such as .png.
bool IsOtherImageName(absl::string_view name);
// The kind by which a file that is not a sample is counted: the ending of its name, ".json", or
// "without an ending".
std::string EntryKind(absl::string_view path);

}  // namespace cadre
