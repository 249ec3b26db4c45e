// Sums of squares over the whole model, for clipping by the global norm and for LARS's norms of
// tensors. Each rank adds the squares of its slices.
//
//   norms.Clear();
//   for (each bucket) optimizer.AddNorms(gradients, weights, norms);
//   if (!norms.sums().empty()) CADRE_RETURN_IF_ERROR(all_ranks.AllReduceSum(norms.sums()));
//   for (each bucket) optimizer.Update(rate, norms, gradients, weights);
//
// Every element of the model is owned by exactly one rank of the group, so the sum over all ranks
// is right for any plan, and a tensor's norm is the norm of the whole tensor however it is sharded.
// Running statistics are not counted. Sums are in double, so that results under different plans
// differ only in the last bits.
//
// A value; thread-compatible.
#pragma once

#include <span>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class StepNorms {
 public:
  // `parameters`: size of the parameter index.
  StepNorms(const v1::Optimizer& optimizer, int parameters);

  // Summed over the group's ranks, element by element; empty: the optimizer needs no norms.
  std::span<double> sums() { return sums_; }
  void Clear();

  // For owners of slices.
  void Add(int parameter, double gradient_squares, double weight_squares);
  // True: Add uses weight_squares.
  bool by_tensor() const { return by_tensor_; }

  // --- after the sum over the group ---

  // Norm of all gradients, before scaling; 0 when no norms are needed.
  double GradientNorm() const;
  // The factor of all gradients: min(1, clip_norm / (norm + 1e-6)); 1 without clipping. NaN if the
  // norm is NaN, so that divergence is noticed.
  double GradientScale() const;
  // Norms of one tensor, before scaling. Requires: by_tensor().
  double GradientNorm(int parameter) const;
  double WeightNorm(int parameter) const;

 private:
  float clip_norm_;
  bool by_tensor_;
  int parameters_;
  // by_tensor(): squares of gradients by parameter, then of weights. Otherwise one element or none.
  std::vector<double> sums_;
};

}  // namespace cadre
