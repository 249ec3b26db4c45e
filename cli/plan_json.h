// `cadre plan -o json`: one object. docs/architecture.md says what its fields mean.
//
// Thread-safe (a pure function).
#pragma once

#include <string>

#include "cli/plan_prospect.h"

namespace cadre {

std::string ProspectJson(const Prospect& prospect);

}  // namespace cadre
