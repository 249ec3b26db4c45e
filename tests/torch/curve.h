// Runs that are trained both here and in PyTorch, from the same weights on the same batches: specs
// in this folder, version 0 of their models, and batches that are a pure function of spec and step.
//
// Images are a class's centre plus half as much noise; tokens follow one another by a rule that
// every fourth breaks. So there is something to learn, and losses fall.
//
// Values; thread-safe once made.
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
  // Of spec.batch_per_group samples each, one for every step.
  std::vector<WholeBatch> batches;

  int steps() const { return static_cast<int>(spec.stop().steps()); }
};

// Errors: as ReadRunSpec; InvalidArgument for a model that is malformed, and for what neither these
// batches nor the script know: a spec that is not of SGD at a constant rate for some steps.
absl::StatusOr<Curve> ReadCurve(const std::string& path);

// Of the initial weights and all batches. Where it is another than the fixture's, the losses have
// nothing to do with one another.
std::string CurveDigest(const Curve& curve);

}  // namespace cadre
