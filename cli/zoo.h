// The run specs of spec/zoo, as they were when the program was built: so that `cadre plan alexnet`
// works wherever the program is.
//
// Thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre {

// The text of the spec of that name, such as "alexnet". Nothing: there is none.
std::optional<absl::string_view> ZooSpec(absl::string_view name);

std::vector<std::string> ZooNames();

}  // namespace cadre
