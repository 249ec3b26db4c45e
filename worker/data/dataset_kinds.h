// The kinds of data set that OpenDataset chooses from; nobody else includes this.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/data/dataset.h"

namespace cadre {

// What the run needs of its data, whichever kind it is.
struct DatasetNeeds {
  // Of one sample: [height, width, channels], or [length].
  Shape sample_shape;
  // Labels must be below.
  int64_t classes = 0;
  // Tokens must be below.
  int64_t vocabulary = 0;
  uint64_t seed = 0;
  int64_t corrupt_allowed = 0;
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
// Looks at the files' sizes.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokenFiles(const v1::TokenFiles& data, Split split,
                                                        const DatasetNeeds& needs);

// Samples that are a function of (seed, split, index) and nothing else.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticImages(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs);
absl::StatusOr<std::unique_ptr<Dataset>> OpenSyntheticTokens(const v1::SyntheticData& data,
                                                             Split split,
                                                             const DatasetNeeds& needs);

// OutOfRange unless 0 <= index < size.
absl::Status CheckSample(int64_t index, int64_t size);

// GetLabels where all labels are in memory, one a sample.
absl::Status CopyLabels(std::span<const SampleRef> samples, std::span<const int32_t> all,
                        std::span<int32_t> labels);

// Ends in .jpg or .jpeg, in letters of either case.
bool IsJpegName(absl::string_view name);

}  // namespace cadre
