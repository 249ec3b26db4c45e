// The codec of a coding in a run file (run.proto).
//
// Thread-safe (pure function).
#pragma once

#include "kernels/codec/codec.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// fp32 if the coding has no codec. Requires: other fields that the codec needs are set.
Codec CodecOf(const v1::Coding& coding);

}  // namespace cadre
