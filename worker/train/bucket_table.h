// What is fixed about the buckets of a plan (parameters whose gradients are reduced together):
// which ranks reduce, own and gather which interval of each bucket, the number of chunks into which
// it is cut, and the layers to which its parameters belong.
//
// Thread-safe after construction.
#pragma once

#include <string>
#include <vector>

#include "model/parameter_index.h"
#include "plan/plan.h"
#include "worker/comm/communicator.h"
#include "worker/nn/parameter_store.h"

namespace cadre {

struct BucketTable {
  struct Bucket {
    int chunks = 1;
    // The first layer whose forward needs the weights.
    int first_layer = 0;
    // reduce[chunk][i] is the interval that member i along the bucket's axes sums; gather[chunk][i]
    // is the interval that owner i provides. Ranks with equal gradients (those along the bucket's
    // replica axes) each reduce only what they own.
    std::vector<std::vector<Interval>> reduce;
    std::vector<std::vector<Interval>> gather;
    // This rank's interval of each chunk.
    std::vector<Interval> mine;
    // Axes along which the weights are gathered.
    std::vector<std::string> owner_axes;
  };
  std::vector<Bucket> buckets;
  // Buckets that hold parameters of each layer.
  std::vector<std::vector<int>> of_layer;
};

// `whole`: every bucket is one chunk. Requires: `parameters` belong to `plan` and `index`.
BucketTable MakeBucketTable(const Plan& plan, const ParameterIndex& index,
                            const ParameterStore& parameters, bool whole);

}  // namespace cadre
