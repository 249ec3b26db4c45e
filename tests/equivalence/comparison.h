// Trains one run under many plans and compares each with one rank.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "plan/plan.h"
#include "proto/cadre/v1/run.pb.h"
#include "tests/equivalence/ranks.h"

namespace cadre {

// Of RelativeError after five steps. Plans add the same fp32 numbers in other orders: a sum of n
// terms is off by up to about sqrt(n) * 2^-24 of its size, n being some thousands here, which is
// 1e-5 of a gradient; gradients that nearly cancel, batch norms over few elements (whose inverse
// deviation can be large) and five steps that build on one another make up to a hundred times
// that. The smallest mistake a plan could make, to count one sample or one row twice, is above
// 0.05, which plans_test.cc shows.
constexpr double kTolerance = 1e-3;

struct ComparisonResult {
  int plans = 0;
  int failures = 0;
  double worst_relative_error = 0;
  // A few of what failed, with the plan.
  std::vector<std::string> messages;
};

class Comparison {
 public:
  // Plans run on the host, as the one rank does.
  Comparison(const v1::RunSpec& spec, KernelsFactory kernels);
  // The one rank runs on the host, plans as `plans` trains them.
  Comparison(const v1::RunSpec& spec, KernelsFactory one, GroupTrainer plans);

  // `count` random plans over all meshes of `ranks`, or with 0 every pair of splits of neighbours.
  std::vector<Plan> Plans(int ranks, size_t count, std::mt19937_64& random) const;

  using Progress = std::function<void(size_t done, size_t of, const ComparisonResult&)>;
  // Errors: of the one rank that plans are compared with. What goes wrong under a plan is a
  // failure.
  absl::StatusOr<ComparisonResult> Run(const std::vector<Plan>& plans,
                                       const Progress& progress = nullptr);

  const Graph& graph() const { return graph_; }
  const ParameterIndex& index() const { return index_; }

 private:
  // What is wrong with the result; empty: nothing.
  std::string Judge(const GroupResult& many, double* error) const;

  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  Ranks host_;
  const GroupTrainer train_;
  Training training_;
  GroupResult one_;
};

}  // namespace cadre
