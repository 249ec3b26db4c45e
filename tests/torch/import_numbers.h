// The numbers of the networks in folder imports: weights that follow from the names of tensors or
// that the fixture has, inputs and labels. make_imports.py has the same functions.
//
// Thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "cli/import/onnx_file.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/equivalence/ranks.h"
#include "tests/torch/fixtures.h"

namespace cadre {

// Writes the files to which the tensors of an ONNX file refer.
void WriteNumbers(const onnx::Model& file, Fixtures& fixtures, const std::string& folder);

// If the model has a padding token, the share of padding in sample i is i / 8; the first token is
// never padding.
WholeBatch BatchOfNumbers(const v1::Model& model, int64_t samples);

// The norm of a tensor, and its product with pseudo-random signs.
struct Projection {
  double norm = 0;
  double product = 0;
};
Projection ProjectionOf(const std::string& name, const std::vector<float>& values);

}  // namespace cadre
