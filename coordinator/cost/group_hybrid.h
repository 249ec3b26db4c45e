// Group hybrid parallelism: convolutions by samples over all N workers; fully connected layers cut
// by outputs inside groups of g, whose members put their batches together.
//
// Source: Joo, Youn, "Accelerating distributed SGD with group hybrid parallelism", IEEE Access 9,
// 2021; the time model is derived from the algorithm:
//
//   T_DP     = F b / R + 2 ceil(log2 N) alpha + 2 (N - 1) / N |W| beta
//   T_MP     = F B / (N R) + sum over layers (AG_N(B d_out) + RS_N(B d_in))
//   T_GHP(g) = F b / R + AR_N(|W_conv|) + (g - 1) b S beta + 2 (1 / g - 1 / N) |W_fc| beta +
//   latency S        = d_in of the first fully connected layer + sum d_out + sum d_in of all of
//   them memory   = c (|W_conv| + |W_fc| / g) + activations
//
// for b = B / N samples of a worker, F operations a sample and R operations a second; AG, RS, AR as
// in coordinator/cost/communication_cost.h. Latency: the groups' gathers and sums take ceil(log2 g)
// messages each, and each layer's gradients are reduced on their own.
//
// Thread-safe (values and pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cost/communication_cost.h"
#include "coordinator/cost/network_shape.h"

namespace cadre {

// Weight, gradient and momentum in fp32.
inline constexpr double kBytesPerParameter = 12;

struct HybridProblem {
  const NetworkShape* network = nullptr;
  // N, and B of all of them.
  int64_t workers = 1;
  double batch = 1;
  WordLink link;
  // R; 0: computing is left out.
  double flops = 0;
  // Of a worker; 0: no limit.
  double memory_bytes = 0;

  double samples() const { return batch / static_cast<double>(workers); }
};

// --- Time ---

// F b / R, backward taking two forwards.
double HybridComputeSeconds(const HybridProblem& problem);
// All weights in one all-reduce, as T_DP has it.
CommunicationCost DataParallelCommunication(const HybridProblem& problem);
CommunicationCost ModelParallelCommunication(const HybridProblem& problem);
// One per layer of the network; the first fully connected one has the gather of what it takes.
std::vector<CommunicationCost> GroupHybridLayers(const HybridProblem& problem, int64_t group);
CommunicationCost GroupHybridCommunication(const HybridProblem& problem, int64_t group);
double DataParallelSeconds(const HybridProblem& problem);
double ModelParallelSeconds(const HybridProblem& problem);
double GroupHybridSeconds(const HybridProblem& problem, int64_t group);

// --- Memory ---

// c (|W_conv| + |W_fc| / g).
double HybridStateBytes(const NetworkShape& network, int64_t group);
// What layers took in and keep for backward: convolutions b samples, the others g b.
double HybridActivationBytes(const HybridProblem& problem, int64_t group);

// --- Which group ---

// S, and the closed form g* = sqrt(2 |W_fc| / (b S)): of all g the one that moves fewest words.
// 1 without fully connected layers.
double HybridActivationWords(const NetworkShape& network);
double BestGroup(const HybridProblem& problem);
// The same of |W_fc|, b and S. Requires: samples, activation_words > 0.
double BestGroup(double product_weights, double samples, double activation_words);

// BestGroup rounded to the cheaper of the divisors of N next to it (by words where the link is not
// known), or the next larger one that fits into memory. Errors: ResourceExhausted when not even
// g = N fits, with the bytes that are missing.
absl::StatusOr<int64_t> ChooseGroup(const HybridProblem& problem);

// Which fully connected layers are worth cutting in groups of g, each for itself: by layer of the
// network. A layer behind one that is not cut gathers what it takes. The least sum over the chain.
std::vector<bool> LayersWorthCutting(const HybridProblem& problem, int64_t group);

// Ascending. Requires: n >= 1.
std::vector<int64_t> DivisorsOf(int64_t n);

}  // namespace cadre
