// The samples of one split of a run's data: inputs and labels by index.
//
// A sample is asked for by its index and the epoch it stands in, because augmentation draws anew in
// every epoch. What comes back is a pure function of (spec, files, index, epoch): never of the rank
// that asks, of the batch around it or of what was asked before.
//
// Owns its memory. What has to be decoded is read when asked for.
//
// Thread-safe after OpenDataset: any number of threads may call Get at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

// A place in the order of an epoch is a number of 32 bits.
inline constexpr int64_t kMaxSamples = (int64_t{1} << 32) - 1;

enum class Split { kTrain, kTest };

struct SampleRef {
  int64_t index = 0;
  int64_t epoch = 0;
  friend bool operator==(const SampleRef&, const SampleRef&) = default;
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  // Samples.
  virtual int64_t size() const = 0;
  // Of one sample: [height, width, channels], or [length] for tokens.
  virtual const Shape& sample_shape() const = 0;
  // 1, or the tokens of a sequence.
  virtual int64_t labels_per_sample() const { return 1; }
  // Writes the samples one after another, and their labels. A sample that cannot be decoded is
  // named in the log and replaced by the next one of the same class that can.
  // Requires: inputs holds samples.size() samples; labels holds samples.size() *
  // labels_per_sample(), or is empty where labels are not wanted.
  // Errors: OutOfRange for an index that is not in [0, size()); DataLoss naming the sample where
  // one more could not be decoded than the spec allows; InvalidArgument for tokens that the model
  // does not know. Nothing is promised of the output then.
  virtual absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                           std::span<int32_t> labels) const = 0;
  // The labels alone, without decoding: the same that Get writes. Errors as Get.
  virtual absl::Status GetLabels(std::span<const SampleRef> samples,
                                 std::span<int32_t> labels) const = 0;
  // Samples found so far that could not be read.
  virtual int64_t corrupt_samples() const { return 0; }
};

// Opens what `spec.data` names, in the shape of the model's input. Labels are checked against the
// model's classes, those of token files when they are read.
// Errors name the file: NotFound for a missing one, DataLoss for one that is cut short or damaged,
// InvalidArgument for one that is of another format, does not fit the model, or holds more than
// kMaxSamples.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::RunSpec& spec, Split split);

}  // namespace cadre
