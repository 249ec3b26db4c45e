// Shows how sensitive a plan is to its inputs: repeats the search with a faster or slower link, a
// larger or smaller batch, or less memory.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lab/plan_question.h"
#include "plan/search/search.h"

namespace cadre {

// One repetition of the search, with one input changed.
struct Variation {
  // The input that is changed: "bandwidth" (bytes per second), "batch" (samples) or "memory" (bytes
  // per rank); the factor (1 for memory), and the resulting value.
  absl::string_view what;
  double factor = 1;
  double value = 0;
  // The best plan for that value; nullopt: no plan is possible, for the reason in `note`.
  std::optional<Candidate> candidate;
  std::string note;
  // How that plan differs from the original answer: whether its mesh does, and the number of layers
  // that are split differently; whether it recomputes other blocks.
  bool other_mesh = false;
  int other_layers = 0;
  bool other_blocks = false;

  bool changes() const { return other_mesh || other_layers > 0 || other_blocks || !candidate; }
};

// Varies the bandwidth by 1/4, 1/2, 2 and 4, the batch by 1/2 and 2, and limits memory to one byte
// less than the answer needs. Cost: one search each.
std::vector<Variation> VaryInputs(const PlanQuestion& question, const SearchResult& answer);

// Whether the searches of VaryInputs take so little time that a report includes them by default.
bool VaryingIsCheap(const PlanQuestion& question, const SearchResult& answer);

}  // namespace cadre
