// Where a tape's buffers lie: which of them share memory because one is the other changed in place,
// and which because one's life ends before the other's begins. Nobody but spec/tape.cc includes
// this.
//
// Thread-safe (pure function).
#pragma once

#include <vector>

#include "spec/tape.h"

namespace cadre {

// Fills in the buffers' lives and offsets and the tape's size. `in_place`: operations that may
// write their result over an operand; they do where nobody needs the operand any more, and the
// buffers become one.
void AssignMemory(Tape& tape, const std::vector<int>& in_place);

}  // namespace cadre
