// Tensors of a checkpoint for a model: opened only when they are those that the model has.
//
// Thread-safe (pure functions over files).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "spec/parameter_index.h"
#include "spec/safetensors.h"

namespace cadre {

// Errors: as SafetensorsFile::Open; InvalidArgument where names or shapes differ, listing them.
absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& path,
                                            const std::vector<NamedShape>& in_model);

// The weights of `from`: a checkpoint's folder, a directory of checkpoints (its newest) or a
// *.safetensors file. Errors: NotFound, ... of files; those of OpenTensors.
absl::StatusOr<SafetensorsFile> OpenWeights(const std::string& from, const ParameterIndex& index);

}  // namespace cadre
