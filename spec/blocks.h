// Blocks of a model: layers that are written once and used often. Reading a spec replaces every use
// by the block's layers (proto/cadre/v1/run.proto says how they are named and connected), so that
// the rest of the system sees plain layers only.
//
//   block { name: "fire" parameter: "width"
//     layer { name: "conv" set: "out_channels = 2 * width" convolution { kernel: 3 padding: 1 } }
//     layer { name: "relu" relu {} } }
//   layer { name: "a" use { block: "fire" with { key: "width" value: 32 } } }
//
// becomes the layers "a/conv" with 64 channels and "a/relu"; who names "a" as an input takes the
// output of "a/relu".
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "proto/cadre/v1/run.pb.h"
#include "spec/problem.h"

namespace cadre {

struct ExpandedModel {
  // Without blocks, uses and `set`.
  v1::Model model;
  // For every layer of `model`, the path of what it was made from, such as
  // "model.block[0].layer[2]" or "model.layer[7]".
  std::vector<std::string> origins;
};

// Appends to `problems` what is wrong, by path from the spec; what is returned then is incomplete.
// A model without blocks comes back as it is.
ExpandedModel ExpandBlocks(const v1::Model& model, std::vector<Problem>* problems);

}  // namespace cadre
