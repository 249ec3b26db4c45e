// Finds the plan that is predicted to be fastest: the mesh, and each layer's layout.
//
// For one mesh, a plan's serial seconds are a sum: of what each layer costs as it is cut
// (layer_options.h has the ways that are tried), and of the moves between layers that are cut
// differently. The least sum is found by dynamic programming (elimination.h): for a chain, layer by
// layer; for a network with branches, the layers that others hang on are decided last. That is
// exact, for every graph, as long as no layer has more than `most_states` combinations of those
// that it hangs on; beyond, some ways are left out and the answer says that it may not be the
// least. Under a memory limit the sum is found among plans that fit, memory being a second sum.
//
// What communication costs when it overlaps with computing is no sum. So the search is repeated
// with gradients' communication weighed less and less, and what it finds is predicted as a whole
// (prediction.h). The first few get their best buckets (WithBestBuckets); then plans near the
// fastest are tried. The fastest is the answer. Exact is said of the sums only.
//
// The answer's buckets are part of its prediction. A group's workers make theirs by the rule, from
// the link that they measure, so a step there is that of WithBuckets.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/plan/plan_problem.h"
#include "coordinator/plan/prediction.h"
#include "spec/plan.h"

namespace cadre {

struct SearchOptions {
  // Of one layer, per mesh.
  int64_t most_states = 20'000;
  // Under a memory limit: pairs of seconds and bytes that are kept of a state.
  int most_labels = 64;
  // Plans that are predicted as a whole.
  int most_predicted = 48;
  // Plans near the fastest that are predicted besides; fewer where each takes long to find.
  int most_improvements = 400;
  // Under AUTO the other policies are searched too, where that takes no more states: then no
  // policy's answer is faster.
  int64_t most_policy_states = 500'000;
  // Other answers that are reported.
  int runners_up = 5;
};

struct Candidate {
  Plan plan;
  Prediction prediction;
};

// What one layer would cost if it alone were cut otherwise, everything else staying.
struct LayerRunnerUp {
  std::vector<IndexSplit> splits;
  // Serial seconds of the whole plan more than the answer's; infinite: there is no other way.
  double more_seconds = 0;
};

struct SearchResult {
  Candidate best;
  // The best of other meshes or strategies, fastest first.
  std::vector<Candidate> others;
  // One per layer of the graph.
  std::vector<LayerRunnerUp> runners_up;
  // Layers to which the strategy could not be applied, and which are cut as is best.
  std::vector<std::string> freed;
  // The sums were minimised exactly. It says nothing of what overlaps: the answer is the fastest of
  // those that were predicted.
  bool exact = true;
  // By what part of it the sum of the answer that was found may be above the least, all meshes
  // together; 0 where it is exact. Infinite where that is not known.
  double gap = 0;
  // Meshes that there are, those whose sums were minimised (the others cannot be better), and
  // states of all sums.
  int64_t meshes = 0;
  int64_t meshes_searched = 0;
  int64_t states = 0;
  // With which the best fits into memory; the problem's, unless it is free to choose.
  int micro_batches = 1;
  // Without the pins; nothing: nothing was pinned.
  std::optional<Candidate> unpinned;
};

// Errors: ResourceExhausted when no plan fits into memory, naming the layer that needs most, how
// many bytes are missing, and the least number of ranks that would do (of up to 65,536), if any;
// InvalidArgument for pins that no plan fulfils.
absl::StatusOr<SearchResult> Search(const PlanProblem& problem, const SearchOptions& options = {});

// The meshes that are tried: all ways to write the ranks as data * space * model (space only for
// models of images), or the pinned one, or what the strategy allows. Of more than some hundreds,
// those that have no axis longer than what it could cut.
std::vector<Mesh> MeshesFor(const PlanProblem& problem);

}  // namespace cadre
