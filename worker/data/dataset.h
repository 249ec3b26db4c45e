// The samples of one split of a run's data: images and labels by index.
//
// Owns its memory; IDX pixels stay bytes and are converted when asked for, synthetic samples are
// made when asked for.
//
// Thread-safe after OpenDataset.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "tensor/shape.h"

namespace cadre {

enum class Split { kTrain, kTest };

class Dataset {
 public:
  virtual ~Dataset() = default;

  // Samples.
  virtual int64_t size() const = 0;
  // Of one sample: [channels, height, width].
  virtual const Shape& sample_shape() const = 0;
  // Writes the samples one after another, and their labels.
  // Requires: images holds indices.size() samples, labels as many.
  // Errors: OutOfRange for an index that is not in [0, size()); nothing is promised of the output.
  virtual absl::Status Get(std::span<const int64_t> indices, std::span<float> images,
                           std::span<int32_t> labels) const = 0;
  // The labels alone, without touching images. Requires and errors as Get.
  virtual absl::Status GetLabels(std::span<const int64_t> indices,
                                 std::span<int32_t> labels) const = 0;
};

// Opens what `spec.data` names, in the shape of `spec.model.input`. Labels are checked against the
// model's classes.
// Errors name the file: NotFound for a missing one, DataLoss for one that is cut short or damaged,
// InvalidArgument for one that is not IDX or does not fit the model.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1::RunSpec& spec, Split split);

}  // namespace cadre
