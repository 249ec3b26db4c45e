// Random models: graphs of any operations, with branches, to find errors in combinations that no
// other test contains. A model is a function of its seed.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// A valid spec with a model of up to about a dozen layers on small images (or, one time in five,
// token sequences), an optimizer and a batch.
v1::RunSpec RandomRun(uint64_t seed);

}  // namespace cadre
