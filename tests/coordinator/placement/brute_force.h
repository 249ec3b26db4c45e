// The judge of placements: every placement and every order of operators, on the message itself,
// with nothing of coordinator/placement.
#pragma once

#include <optional>

#include "proto/cadre/v1/placement.pb.h"

namespace cadre::testing {

// The least makespan; nothing: no placement fits into memory. Requires: up to some 8 operators.
std::optional<double> LeastMakespan(const v1::OperatorGraph& graph);

}  // namespace cadre::testing
