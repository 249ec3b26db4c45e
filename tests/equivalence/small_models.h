// Small versions of the models of model/zoo/: all layers, with fewer channels and features, on
// smaller inputs, in numbers that are not divisible by the ranks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The names that SmallModel accepts.
const std::vector<std::string>& SmallModelNames();

// `zoo`: folder of the zoo's run files. Errors: NotFound for an unknown name.
absl::StatusOr<v1::RunSpec> SmallModel(const std::string& zoo, const std::string& name);

}  // namespace cadre
