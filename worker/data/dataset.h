// The samples of one split of a run's data: inputs and labels by index.
//
// A sample is requested by its index and its epoch, because augmentation differs between epochs.
// The result is a pure function of (spec, files, index, epoch): it does not depend on the rank that
// requests it, on the rest of the batch or on earlier requests.
//
// Owns its memory. Encoded samples are read and decoded on request.
//
// Thread-safe: any number of threads may call Get concurrently.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "tensor/shape.h"

namespace cadre {

// Positions in the order of an epoch are stored in 32 bits.
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

  // Number of samples.
  virtual int64_t size() const = 0;
  // Shape of one sample: [height, width, channels], or [length] for tokens.
  virtual const Shape& sample_shape() const = 0;
  // 1, or the number of tokens of a sequence that have labels.
  virtual int64_t labels_per_sample() const { return 1; }
  // Writes the samples and their labels contiguously. A sample that cannot be decoded is logged and
  // replaced by the next one of the same class that can be decoded.
  // Requires: `inputs` holds samples.size() samples; `labels` holds samples.size() *
  // labels_per_sample() labels, or is empty if labels are not requested.
  // Errors: OutOfRange for an index outside [0, size()); DataLoss, naming the sample, if more
  // samples are corrupt than the spec allows; InvalidArgument for tokens outside the model's
  // vocabulary. The output is then unspecified.
  virtual absl::Status Get(std::span<const SampleRef> samples, std::span<float> inputs,
                           std::span<int32_t> labels) const = 0;
  // Writes only the labels, without decoding; they equal those of Get. Errors as Get.
  virtual absl::Status GetLabels(std::span<const SampleRef> samples,
                                 std::span<int32_t> labels) const = 0;
  // Number of samples found so far that could not be read.
  virtual int64_t corrupt_samples() const { return 0; }
  // What of the files was not made a sample when the data set was opened, with counts:
  // ".json (4), images beside the class folders (1)". At most kMaxReason bytes of UTF-8; empty if
  // nothing was left out.
  virtual std::string left_out() const { return ""; }
};

}  // namespace cadre
