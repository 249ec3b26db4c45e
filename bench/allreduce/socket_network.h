// The measure of what a loopback connection can do: two processes exchange the bytes of an
// all-reduce, both ways at once over one TCP connection, by plain send and recv, and add nothing.
#pragma once

#include <memory>

#include "bench/allreduce/contestant.h"

namespace cadre::bench {

// Requires: rank is 0 or 1.
std::unique_ptr<Network> MakeSocketNetwork(int rank);

}  // namespace cadre::bench
