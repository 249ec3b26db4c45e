// Group hybrid parallelism: convolutions are split by samples over all N workers, fully connected
// layers by outputs inside groups of g, whose members combine their batches.
//
// Source: Joo, Youn, "Accelerating distributed SGD with group hybrid parallelism", IEEE Access 9,
// 2021; the time model is derived from the algorithm:
//
//   T_DP     = F b / R + 2 ceil(log2 N) alpha + 2 (N - 1) / N |W| beta
//   T_MP     = F B / (N R) + sum over layers (AG_N(B d_out) + RS_N(B d_in))
//   T_GHP(g) = F b / R + AR_N(|W_conv|) + (g - 1) b S beta + 2 (1 / g - 1 / N) |W_fc| beta
//              + latency
//   S        = d_in of the first fully connected layer + sum of d_out + d_in of all of them
//   memory   = c (|W_conv| + |W_fc| / g) + activations
//
// for b = B / N samples of a worker, F operations per sample and R operations per second.
// plan/cost/communication_cost.h has AllGather (AG), ReduceScatter (RS) and the all-reduce (AR).
// Latency: each gather or sum of a group takes ceil(log2 g) messages, and the gradients of each
// layer are reduced separately.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/network_shape.h"

namespace cadre {

// Weight, gradient and momentum in fp32.
inline constexpr double kBytesPerParameter = 12;

// The input of the formulas.
struct HybridProblem {
  const NetworkShape* network = nullptr;
  // N, and B over all of them.
  int64_t workers = 1;
  double batch = 1;
  WordLink link;
  // R; 0: compute time is not counted.
  double flops = 0;
  // Memory of a worker; 0: no limit.
  double memory_bytes = 0;

  double samples() const { return batch / workers; }
};

// --- Time ---

// F b / R, where F includes backward, which takes as long as two forwards.
double HybridComputeSeconds(const HybridProblem& problem);
// All weights in one all-reduce, as in T_DP.
CommunicationCost DataParallelCommunication(const HybridProblem& problem);
CommunicationCost ModelParallelCommunication(const HybridProblem& problem);
// One per layer of the network; the first fully connected one includes the gather of its input.
std::vector<CommunicationCost> GroupHybridLayers(const HybridProblem& problem, int64_t group);
CommunicationCost GroupHybridCommunication(const HybridProblem& problem, int64_t group);
double DataParallelSeconds(const HybridProblem& problem);
double ModelParallelSeconds(const HybridProblem& problem);
double GroupHybridSeconds(const HybridProblem& problem, int64_t group);

// --- Memory ---

// c (|W_conv| + |W_fc| / g).
double HybridStateBytes(const NetworkShape& network, int64_t group);
// The inputs that layers keep for backward: of b samples in convolutions, of g b in other layers.
double HybridActivationBytes(const HybridProblem& problem, int64_t group);

// --- Which group ---

// S, and the closed form g* = sqrt(2 |W_fc| / (b S)), the g that moves the fewest words; 1 without
// fully connected layers.
double HybridActivationWords(const NetworkShape& network);
double BestGroup(const HybridProblem& problem);
// g* of |W_fc|, b and S. Requires: samples, activation_words > 0.
double BestGroup(double product_weights, double samples, double activation_words);

// BestGroup rounded to the cheaper of the two nearest divisors of N (by words if the link is
// unknown), or the next larger one that fits into memory. Errors: ResourceExhausted, with the
// number of bytes missing, if not even g = N fits.
absl::StatusOr<int64_t> ChooseGroup(const HybridProblem& problem);

// By layer: whether it is split in groups of g in the solution of minimum total cost. A split layer
// after one that is not split gathers its input.
std::vector<bool> LayersWorthSplitting(const HybridProblem& problem, int64_t group);

// Ascending. Requires: n >= 1.
std::vector<int64_t> DivisorsOf(int64_t n);

}  // namespace cadre
