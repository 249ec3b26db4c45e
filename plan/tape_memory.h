// Memory assignment for the buffers of a tape. Part of plan/tape.cc.
//
// Thread-safe (pure function).
#pragma once

#include <vector>

#include "plan/tape.h"

namespace cadre {

// Sets the buffers' lifetimes and offsets and the size of the tape. `in_place`: operations that may
// overwrite an operand; if it has no later use, operand and result become one buffer.
void AssignMemory(Tape& tape, const std::vector<int>& in_place);

}  // namespace cadre
