// Reference for placements: enumerates all placements and orders of operators directly on the
// protobuf message, without code of plan/placement.
#pragma once

#include <optional>

#include "proto/cadre/v1/placement.pb.h"

namespace cadre::testing {

// The minimum makespan; nullopt: no placement fits into memory. Requires: at most about 8
// operators.
std::optional<double> OptimalMakespan(const v1::OperatorGraph& graph);

}  // namespace cadre::testing
