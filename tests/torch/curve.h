// Runs that are trained both here and in PyTorch, from the same weights on the same batches: run
// files in this folder, version 0 of their models, and batches that are a pure function of spec and
// step.
//
// Images are the center of a class plus half as much noise; tokens follow a rule, which every
// fourth token breaks. So a model can learn them, and the loss falls.
//
// Values; thread-safe after construction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/equivalence/ranks.h"

namespace cadre {

struct Curve {
  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
  // One for every step, of spec.batch_per_group samples.
  std::vector<WholeBatch> batches;

  int steps() const { return spec.stop().steps(); }
};

// Errors: as ReadRunSpec; InvalidArgument for an invalid model, and for a spec that the script does
// not support: anything but some steps of SGD at a constant rate.
absl::StatusOr<Curve> ReadCurve(const std::string& path);

// Digest of the initial weights and all batches. If it differs from the fixture's, the losses
// cannot be compared.
std::string CurveDigest(const Curve& curve);

}  // namespace cadre
