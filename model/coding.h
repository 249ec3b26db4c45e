// How a run encodes what groups and aggregators exchange (run.proto, Coding).
//
// Thread-safe (pure functions).
#pragma once

#include <optional>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The coding with all defaults filled in; nothing for values in fp32.
std::optional<v1::Coding> CodingOf(const v1::Coding& coding);

}  // namespace cadre
