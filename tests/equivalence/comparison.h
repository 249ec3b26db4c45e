// Trains one run under many plans and compares the result of each with the result of one rank.
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

// Limit of RelativeError after five steps. Plans add the same fp32 numbers in different orders: the
// relative error of a sum of n terms is about sqrt(n) * 2^-24, or 1e-5 for the thousands of terms
// of a gradient. Gradients that nearly cancel, batch norms over few elements (whose inverse
// deviation can be large) and five consecutive steps amplify that up to a hundred times. The
// smallest error that a plan could make, to count a sample or a row twice, is above 0.05
// (plans_test.cc).
constexpr double kTolerance = 1e-3;

struct ComparisonResult {
  int plans = 0;
  int failures = 0;
  double worst_relative_error = 0;
  // Some of the failures, with their plans.
  std::vector<std::string> messages;
};

class Comparison {
 public:
  // Plans and the single rank run on the host.
  Comparison(const v1::RunSpec& spec, KernelsFactory kernels);
  // The single rank runs on the host; `plans` trains the plans.
  Comparison(const v1::RunSpec& spec, KernelsFactory one, GroupTrainer plans);

  // `count` random plans over all meshes of `ranks`; 0: plans that cover every pair of splits of
  // neighbors.
  std::vector<Plan> Plans(int ranks, size_t count, std::mt19937_64& random) const;

  // `count` random plans with placed layers over all meshes of `ranks`.
  std::vector<Plan> PlacedPlans(int ranks, size_t count, std::mt19937_64& random) const;

  using Progress = std::function<void(size_t done, size_t of, const ComparisonResult&)>;
  // Errors: those of the single rank. An error of a plan is a failure.
  absl::StatusOr<ComparisonResult> Run(const std::vector<Plan>& plans,
                                       const Progress& progress = nullptr);

 private:
  // Describes the first difference from the single rank; empty: there is none.
  std::string FindDifference(const GroupResult& many, double* error) const;

  const v1::RunSpec spec_;
  const Graph graph_;
  const ParameterIndex index_;
  Ranks host_;
  const GroupTrainer train_;
  Training training_;
  GroupResult one_;
};

}  // namespace cadre
