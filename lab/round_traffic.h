// What a group and the aggregators exchange in one round.
//
// Thread-safe (pure function).
#pragma once

#include <cstdint>

#include "model/parameter_index.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Payload of one group over all of its ranks.
struct RoundTraffic {
  int64_t bytes_up = 0;
  int64_t bytes_down = 0;

  int64_t bytes() const { return bytes_up + bytes_down; }
};

// With the codecs of the run. Codes whose length depends on the values count with their maximum.
RoundTraffic RoundTrafficOf(const v1::Averaging& averaging, const ParameterIndex& index);

}  // namespace cadre
