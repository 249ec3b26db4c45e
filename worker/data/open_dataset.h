// Opens the data set of a run: makes a Dataset of the kind that the run names.
//
// Thread-safe (a function of its arguments and of files).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "proto/cadre/v1/run.pb.h"
#include "worker/data/dataset.h"

namespace cadre {

// Opens the data set that `spec.data` names, in the shape of the model's input. Labels are checked
// against the model's classes, now or, for token files, when they are read.
// Errors name the file: NotFound for a missing one; DataLoss for a truncated or damaged one;
// InvalidArgument for a file that has another format, does not fit the model, or holds more than
// kMaxSamples samples; those of `files`, of which the data set keeps a copy.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(
    const v1::RunSpec& spec, Split split, const RootedFiles& files = RootedFiles::Unrestricted());

}  // namespace cadre
