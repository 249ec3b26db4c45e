// Reference for placements: enumerates all placements and orders of operators directly on the
// protobuf message, without code of plan/placement.
#pragma once

#include <optional>

#include "proto/cadre/v1/placement.pb.h"

namespace cadre::testing {

// The minimum makespan if messages do not wait for one another; nullopt: no placement fits into
// memory. Requires: at most about 8 operators.
std::optional<double> OptimalMakespan(const v1::OperatorGraph& graph);

// The minimum makespan if a device sends one message and receives one message at a time. Requires:
// at most about 5 operators.
std::optional<double> OptimalMakespanWithSharedLinks(const v1::OperatorGraph& graph);

}  // namespace cadre::testing
