// What does not change of a plan's buckets as they travel: who sums, owns and gathers which part of
// them, and which layers they belong to.
//
// A bucket may be cut into chunks that travel one by one. Ranks that hold equal gradients (the
// bucket's `same` axes) each sum what they will own, and no more.
//
// Thread-safe once made.
#pragma once

#include <string>
#include <vector>

#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "worker/comm/communicator.h"
#include "worker/nn/parameter_store.h"

namespace cadre {

struct BucketParts {
  int chunks = 1;
  // First layer that needs it forward.
  int first_layer = 0;
  // Layers whose gradients are in it.
  int layers = 0;
  // Members that sum it, with their slices, chunk by chunk; members that own it, likewise.
  std::vector<std::vector<Piece>> reduce;
  std::vector<std::vector<Piece>> gather;
  // This rank's among both.
  std::vector<Piece> mine;
  // Axes whose ranks gather it.
  std::vector<std::string> owners;
};

struct BucketTable {
  std::vector<BucketParts> buckets;
  // Buckets of each layer's parameters.
  std::vector<std::vector<int>> of_layer;
};

// `whole`: buckets are not cut into chunks. Requires: `parameters` are of plan and index.
BucketTable BucketTableOf(const Plan& plan, const ParameterIndex& index,
                          const ParameterStore& parameters, bool whole);

}  // namespace cadre
