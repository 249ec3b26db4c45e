// Tensors of a checkpoint, verified against a model.
//
// Thread-safe (pure functions over files).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/formats/safetensors.h"
#include "model/parameter_index.h"

namespace cadre {

// Errors: as SafetensorsFile::Open; InvalidArgument with the list of different names or shapes.
absl::StatusOr<SafetensorsFile> OpenTensors(const std::string& path,
                                            const std::vector<NamedShape>& in_model);

// The weights of `from`: a checkpoint's folder, a directory of checkpoints (its newest) or a
// *.safetensors file. Errors: NotFound, ... of files; those of OpenTensors.
absl::StatusOr<SafetensorsFile> OpenWeights(const std::string& from, const ParameterIndex& index);

}  // namespace cadre
