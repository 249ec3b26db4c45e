// Operator graphs by chance, each a function of its seed.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/placement.pb.h"

namespace cadre::testing {

struct RandomGraphOptions {
  int least_ops = 2;
  int most_ops = 8;
  int most_devices = 3;
};

// 2 devices or more, joined directly, in a row, by one switch or by two; some with devices of
// unlike speed, some with little memory. Times, sizes and links are small numbers, so that sums are
// exact.
v1::OperatorGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace cadre::testing
