// The run files of model/zoo, compiled into the program, so that `cadre plan alexnet` works in any
// directory.
//
// Thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The text of the run file of that name, such as "alexnet"; nothing if there is none.
std::optional<absl::string_view> ZooSpec(absl::string_view name);

std::vector<std::string> ZooNames();

}  // namespace cadre
