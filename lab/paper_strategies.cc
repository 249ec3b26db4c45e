// The strategies of two papers as points of one family, with their own cost formulas.
//
// Gholami, Azad, Jin, Keutzer and Buluc ("Integrated model, batch, and domain parallelism in
// training neural networks", SPAA 2018) arrange P ranks as a grid P_r x P_c and split each layer on
// it: weights (or rows of images) over P_r, samples over P_c. Their strategies differ in how they
// split convolutions (SplitOf): on the grid like the fully connected layers, by samples over all
// ranks, or by rows and samples. Joo and Youn (2021) split convolutions by samples and fully
// connected layers inside groups of g ranks, which is the grid g x N / g; their formulas count
// reduce-scatters instead of the all-reduces of the first paper (group_hybrid.h).
//
// The best grid is found by trying all divisors of P; the values of the closed forms (BestRows,
// BestGroup) are reported next to it, not rounded. Grids that do not fit into memory are excluded;
// grids with fewer samples than P_c are used only if there is no other. The cost is linear in
// divisors and layers.
//
// Limits: no overlap, equal links, biases and norms ignored, and halos counted in one direction, as
// in the papers. plan/search/prediction.h predicts the plans that Cadre executes.
#include "lab/paper_strategies.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

// How a strategy splits one layer.
enum class Split { kGrid, kBatch, kDomain };

Split SplitOf(Strategy strategy, const LayerShape& layer) {
  if (!layer.convolution) return Split::kGrid;
  switch (strategy) {
    case Strategy::kBatch:
    case Strategy::kModel:
    case Strategy::kUniformGrid:
    case Strategy::kAuto:
      return Split::kGrid;
    case Strategy::kConvBatchFcGrid:
    case Strategy::kGroupHybrid:
      return Split::kBatch;
    case Strategy::kConvDomainFcGrid:
      return Split::kDomain;
  }
  return Split::kGrid;
}

std::string ParallelismText(Split split, const Grid& grid) {
  const std::string samples = absl::StrCat("samples/", grid.pc);
  switch (split) {
    case Split::kBatch:
      return absl::StrCat("samples/", grid.ranks());
    case Split::kDomain:
      return grid.pr == 1 ? samples : absl::StrCat(samples, " rows/", grid.pr);
    case Split::kGrid:
      break;
  }
  if (grid.pr == 1) return samples;
  return grid.pc == 1 ? absl::StrCat("outputs/", grid.pr)
                      : absl::StrCat(samples, " outputs/", grid.pr);
}

CommunicationCost CommunicationOf(Split split, const LayerShape& layer, const Grid& grid,
                                  double batch) {
  switch (split) {
    case Split::kGrid:
      return IntegratedTerms(layer, grid, batch).total();
    case Split::kBatch:
      return BatchTerms(layer, grid.ranks()).total();
    case Split::kDomain:
      return DomainTerms(layer, grid, batch).total();
  }
  return {};
}

PaperLayer LayerOf(Strategy strategy, const HybridProblem& problem, const LayerShape& layer,
                   const Grid& grid) {
  const Split split = SplitOf(strategy, layer);
  PaperLayer cost{.name = layer.name, .number = layer.number};
  cost.parallelism = ParallelismText(split, grid);
  cost.communication = CommunicationOf(split, layer, grid, problem.batch);
  const double weights = layer.weights;
  cost.state_bytes = kBytesPerParameter * (split == Split::kGrid ? weights / grid.pr : weights);
  const int64_t parts = split == Split::kGrid ? grid.pc : grid.ranks();
  cost.activation_bytes = kBytesPerWord * problem.batch / parts * layer.inputs;
  return cost;
}

// Group-hybrid uses the formulas of its own paper.
void SetHybridLayers(const HybridProblem& problem, PaperCost& cost) {
  const std::vector<CommunicationCost> layers = GroupHybridLayers(problem, cost.grid.pr);
  const std::vector<bool> worth = LayersWorthSplitting(problem, cost.grid.pr);
  for (size_t l = 0; l < layers.size(); ++l) {
    cost.layers[l].communication = layers[l];
    if (!problem.network->layers[l].convolution) cost.layers[l].worth_splitting = worth[l];
  }
}

PaperCost CostOnGrid(Strategy strategy, const HybridProblem& problem, const Grid& grid) {
  PaperCost cost{.strategy = strategy, .grid = grid};
  bool batch_over_all = false;
  for (const LayerShape& layer : problem.network->layers) {
    cost.layers.push_back(LayerOf(strategy, problem, layer, grid));
    batch_over_all = batch_over_all || SplitOf(strategy, layer) == Split::kBatch;
  }
  if (strategy == Strategy::kGroupHybrid) SetHybridLayers(problem, cost);
  for (PaperLayer& layer : cost.layers) {
    layer.seconds = layer.communication.Seconds(problem.link);
    cost.communication += layer.communication;
    cost.state_bytes += layer.state_bytes;
    cost.activation_bytes += layer.activation_bytes;
  }
  cost.communication_seconds = cost.communication.Seconds(problem.link);
  cost.compute_seconds = HybridComputeSeconds(problem);
  cost.enough_samples = (batch_over_all ? grid.ranks() : grid.pc) <= problem.batch;
  return cost;
}

std::optional<double> ClosedForm(Strategy strategy, const HybridProblem& problem) {
  if (strategy == Strategy::kGroupHybrid) return BestGroup(problem);
  if (strategy == Strategy::kUniformGrid) {
    return BestRows(*problem.network, problem.workers, problem.batch);
  }
  if (strategy != Strategy::kConvBatchFcGrid) return std::nullopt;
  NetworkShape products;
  for (const LayerShape& layer : problem.network->layers) {
    if (!layer.convolution) products.layers.push_back(layer);
  }
  if (products.layers.empty()) return std::nullopt;
  return BestRows(products, problem.workers, problem.batch);
}

std::vector<int64_t> RowsOf(Strategy strategy, int64_t workers) {
  if (strategy == Strategy::kBatch) return {1};
  if (strategy == Strategy::kModel) return {workers};
  return DivisorsOf(workers);
}

double Measure(const PaperCost& cost, const WordLink& link) {
  return link.known() ? cost.communication_seconds : cost.communication.words;
}

// A grid with samples for all ranks is preferred to a faster one without.
bool Better(const PaperCost& one, const PaperCost& other, const HybridProblem& problem) {
  const bool one_has = one.grid.pc <= problem.batch;
  const bool other_has = other.grid.pc <= problem.batch;
  if (one_has != other_has) return one_has;
  return Measure(one, problem.link) < Measure(other, problem.link);
}

absl::Status OutOfMemory(const PaperCost& smallest, const HybridProblem& problem) {
  const auto largest = std::max_element(
      smallest.layers.begin(), smallest.layers.end(), [](const PaperLayer& a, const PaperLayer& b) {
        return a.state_bytes + a.activation_bytes < b.state_bytes + b.activation_bytes;
      });
  const int64_t bytes = std::ceil(smallest.memory_bytes());
  const int64_t missing = std::ceil(smallest.memory_bytes() - problem.memory_bytes);
  return absl::ResourceExhaustedError(absl::StrCat(
      StrategyName(smallest.strategy), " needs ", bytes, " bytes on each of ", problem.workers,
      " workers, ", missing, " more than it has; most of that, ",
      largest->state_bytes + largest->activation_bytes, " bytes, for layer '", largest->name, "'"));
}

absl::StatusOr<PaperCost> BestGrid(Strategy strategy, const HybridProblem& problem,
                                   const std::vector<int64_t>& rows) {
  std::optional<PaperCost> best;
  std::optional<PaperCost> smallest;
  for (const int64_t pr : rows) {
    PaperCost cost = CostOnGrid(strategy, problem, {.pr = pr, .pc = problem.workers / pr});
    if (problem.memory_bytes > 0 && cost.memory_bytes() > problem.memory_bytes) {
      if (!smallest || cost.memory_bytes() < smallest->memory_bytes()) smallest = std::move(cost);
      continue;
    }
    if (!best || Better(cost, *best, problem)) best = std::move(cost);
  }
  if (best) return *std::move(best);
  return OutOfMemory(*smallest, problem);
}

}  // namespace

absl::StatusOr<PaperCost> CostOf(Strategy strategy, const HybridProblem& problem,
                                 std::optional<int64_t> rows) {
  std::vector<int64_t> choices = RowsOf(strategy, problem.workers);
  if (strategy == Strategy::kGroupHybrid && !rows) {
    CADRE_ASSIGN_OR_RETURN(const int64_t group, ChooseGroup(problem));
    choices = {group};
  }
  if (rows) {
    if (std::find(choices.begin(), choices.end(), *rows) == choices.end()) {
      return absl::InvalidArgumentError(absl::StrCat(StrategyName(strategy), " on ",
                                                     problem.workers, " workers has no grid of ",
                                                     *rows, " rows"));
    }
    choices = {*rows};
  }
  CADRE_ASSIGN_OR_RETURN(PaperCost cost, BestGrid(strategy, problem, choices));
  cost.closed_form_rows = ClosedForm(strategy, problem);
  return cost;
}

}  // namespace cadre
