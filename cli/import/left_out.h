// What an imported model leaves out of its file: other outputs and inputs, operators and tensors on
// which the scores do not depend, and tensors that are not trained.
//
// Thread-safe (pure function).
#pragma once

#include <string>
#include <vector>

#include "cli/import/translator.h"
#include "proto/cadre/onnx/model.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// One line for each kind, with the number and the first names. Requires: `translator` has
// translated the graph to the model without problems.
std::vector<std::string> LeftOut(const onnx::Graph& graph, const std::string& scores,
                                 const Translator& translator, const v1::Model& model);

}  // namespace cadre
