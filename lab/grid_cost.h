// The cost of layers on a grid of P = P_r x P_c ranks: integrated model, batch and domain
// parallelism.
//
// Source: Gholami, Azad, Jin, Keutzer, Buluc, "Integrated model, batch, and domain parallelism in
// training neural networks", SPAA 2018. Rank (r, c) holds rows r of W (|W| / P_r weights) and
// columns c of the batch (B / P_c samples):
//
//   forward   Y = W X            all-gather of the outputs over P_r
//   backward  dX = W^T dY        all-reduce over P_r; not for the first layer
//             dW = dY X^T        all-reduce over P_c
//
// P_c = 1 is model parallelism, P_r = 1 batch parallelism. Domain parallelism splits images by rows
// instead and exchanges border rows. Words: the number that one rank sends; it receives as many.
// Exchanges follow plan/cost/communication_cost.h.
//
// Thread-safe (values and pure functions). Requires: ranks and batches >= 1.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "plan/cost/communication_cost.h"
#include "plan/cost/network_shape.h"

namespace cadre {

// A grid of P_r x P_c ranks.
struct Grid {
  // Parts of the weights (or of the rows of images), and parts of the batch.
  int64_t pr = 1;
  int64_t pc = 1;

  int64_t ranks() const { return pr * pc; }
  std::string ToString() const { return absl::StrCat(pr, "x", pc); }
  friend bool operator==(const Grid&, const Grid&) = default;
};

// The cost of one layer. B is the batch of all ranks together.
struct GridTerms {
  // Gather of the outputs; with domain parallelism, exchange of border rows of the input.
  CommunicationCost forward;
  // All-reduce of the inputs' gradient; with domain parallelism, exchange of border rows of the
  // output's gradient.
  CommunicationCost input_gradient;
  CommunicationCost weight_gradient;

  CommunicationCost total() const { return forward + input_gradient + weight_gradient; }
};

// ceil(log P_r) alpha + beta B / P_c (P_r - 1) / P_r d_out;
// 2 (ceil(log P_r) alpha + beta B / P_c (P_r - 1) / P_r d_in), 0 for the first layer;
// 2 (ceil(log P_c) alpha + beta (P_c - 1) / P_c |W| / P_r).
GridTerms IntegratedTerms(const LayerShape& layer, const Grid& grid, double batch);
// The same terms on the grid 1 x P.
GridTerms BatchTerms(const LayerShape& layer, int64_t ranks);

// Images of B / P_c samples are split by rows over P_r, weights are replicated on all ranks:
//   alpha + beta B / P_c X_W X_C floor(k_h / 2)
//   alpha + beta B / P_c Y_W Y_C floor(k_w / 2)
//   2 (ceil(log P) alpha + beta (P - 1) / P |W|)
// There are no borders if P_r = 1 or the kernel has size 1. The formulas count the words of a rank
// at the edge of the image; other ranks have two neighbours and send twice as many. Requires: a
// convolution.
GridTerms DomainTerms(const LayerShape& layer, const Grid& grid, double batch);

// Border rows sent in one direction: B width channels floor(kernel / 2).
double HaloWords(double batch, int64_t width, int64_t channels, int64_t kernel);

// --- Rules ---

// Model parallelism moves fewer words than batch parallelism for batches below this:
// 2 |W| / (3 d_out), assuming d_in = d_out,
double SimpleBatchLimit(const LayerShape& layer);
// and exactly 2 |W| / (d_out + 2 d_in), without the last term for the first layer.
double ExactBatchLimit(const LayerShape& layer);

// The P_r, not rounded, that moves the fewest words if all layers of `network` lie on the grid:
// sqrt(2 sum |W| P / (B (sum d_out + 2 sum d_in))), without d_in of the first layer.
double BestRows(const NetworkShape& network, int64_t ranks, double batch);

}  // namespace cadre
