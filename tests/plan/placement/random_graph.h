// Random operator graphs, each determined by its seed.
#pragma once

#include <cstdint>

#include "proto/cadre/v1/placement.pb.h"

namespace cadre::testing {

struct RandomGraphOptions {
  int min_ops = 2;
  int max_ops = 8;
  int max_devices = 3;
};

// A graph on at least 2 devices, which are connected directly, in a row, by one switch or by two;
// some have different speeds, some have little memory. All numbers are small, so sums are exact.
v1::OperatorGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace cadre::testing
