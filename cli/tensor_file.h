// Writes the tensors of an imported network to a safetensors file.
//
// Thread-safe (pure function).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/import/import.h"
#include "model/formats/safetensors.h"

namespace cadre {

// Errors: as SafetensorsWriter.
absl::Status WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                          const std::map<std::string, std::string>& metadata = {},
                          FloatType type = FloatType::kF32);

}  // namespace cadre
