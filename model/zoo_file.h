// The run files of model/zoo, compiled into the library, so that programs find the models in any
// working directory.
//
// Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/run_file.h"

namespace cadre {

// Names of the models, such as "alexnet".
std::vector<std::string> ZooNames();

// Reads the run file at `path` or, if there is no such file, the model of the zoo with that name.
// Errors: ReadRunSpec's.
absl::StatusOr<RunSpecFile> ReadRunSpecOrZoo(const std::string& path);

}  // namespace cadre
