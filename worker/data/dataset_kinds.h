// The kinds of data set that OpenDataset chooses from; nobody else includes this.
//
// Thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/data/dataset.h"

namespace cadre {

// Reads both files of the split. `classes`: labels must be below.
absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::IdxFiles& files, Split split,
                                                        const Shape& sample_shape, int64_t classes);

// Samples that are a function of (seed, split, index) and nothing else.
std::unique_ptr<Dataset> MakeSyntheticDataset(const v1::SyntheticData& data, Split split,
                                              const Shape& sample_shape, uint64_t seed);

// OutOfRange unless 0 <= index < size.
absl::Status CheckSample(int64_t index, int64_t size);

}  // namespace cadre
