// Blocks: reusable sequences of layers. The reader of run files replaces every use of a block by
// its layers (proto/cadre/v1/run.proto defines their names and inputs); all other code handles
// plain layers only.
//
//   block { name: "fire" parameter: "width"
//     layer { name: "conv" set: "out_channels = 2 * width" convolution { kernel: 3 padding: 1 } }
//     layer { name: "relu" relu {} } }
//   layer { name: "a" use { block: "fire" with { key: "width" value: 32 } } }
//
// becomes the layers "a/conv" with 64 channels and "a/relu"; an input "a" refers to "a/relu".
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

struct ExpandedModel {
  // The model without blocks, uses and `set`.
  v1::Model model;
  // For every layer of `model`, the path of its definition, such as
  // "model.block[0].layer[2]" or "model.layer[7]".
  std::vector<std::string> origins;
};

// Replaces all uses of blocks. Appends errors to `problems`, by path from the spec; the result is
// then incomplete. A model without blocks is unchanged.
ExpandedModel ExpandBlocks(const v1::Model& model, std::vector<Problem>* problems);

}  // namespace cadre
