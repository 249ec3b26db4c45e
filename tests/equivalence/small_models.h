// Small versions of the models of model/zoo/: every layer is there, with fewer channels and
// features, on smaller inputs, and in numbers that do not divide evenly.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The names that SmallModel knows.
const std::vector<std::string>& ZooNames();

// `zoo`: the folder of the zoo's specs. Errors: NotFound for a name that is not in it.
absl::StatusOr<v1::RunSpec> SmallModel(const std::string& zoo, const std::string& name);

}  // namespace cadre
