// Sums of squares that one step needs of the whole model although each rank has only its slices:
// clipping by the global norm, and LARS's norms of tensors.
//
//   norms.Clear();
//   for (each bucket) optimizer.AddNorms(gradients, weights, norms);
//   if (!norms.sums().empty()) CADRE_RETURN_IF_ERROR(all_ranks.AllReduceSum(norms.sums()));
//   for (each bucket) optimizer.Update(rate, norms, gradients, weights);
//
// Every element of the model is owned by exactly one rank of the group, so the plain sum over all
// ranks of the group is right for any plan; a tensor's norm is that of the whole tensor however it
// is sharded. Statistics of batch norm are left out. Sums are taken in double: plans differ only in
// the last bits.
//
// A value; thread-compatible.
#pragma once

#include <span>
#include <vector>

#include "proto/cadre/v1/run.pb.h"

namespace cadre {

class StepNorms {
 public:
  // `parameters`: how many the parameter index has.
  StepNorms(const v1::Optimizer& optimizer, int parameters);

  // What the group's ranks add up, element by element; empty: the optimiser needs no norms.
  std::span<double> sums() { return sums_; }
  void Clear();

  // For owners of slices.
  void Add(int parameter, double gradient_squares, double weight_squares);
  // True when Add looks at weight_squares.
  bool by_tensor() const { return by_tensor_; }

  // The rest is for after the sum over the group.

  // Norm of all gradients, before scaling; 0 when no norms are needed.
  double GradientNorm() const;
  // min(1, clip_norm / (norm + 1e-6)): by what gradients are multiplied. 1 without clipping. A norm
  // that is no number gives a factor that is none either, so that what diverged is noticed.
  double GradientScale() const;
  // Of one tensor, before scaling. Requires: by_tensor().
  double GradientNorm(int parameter) const;
  double WeightNorm(int parameter) const;

 private:
  float clip_norm_;
  bool by_tensor_;
  size_t parameters_;
  // By tensor: squares of gradients by parameter, then of weights. Otherwise one number or none.
  std::vector<double> sums_;
};

}  // namespace cadre
