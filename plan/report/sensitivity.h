// Sensitivity of a searched plan: the same search with a faster or slower link, a larger or smaller
// batch, or less memory.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "plan/report/plan_question.h"
#include "plan/search/search.h"

namespace cadre {

struct Variation {
  // The input that is varied: "bandwidth" (bytes per second), "batch" (samples) or "memory" (bytes
  // per rank); the factor (1 for memory), and the resulting value.
  absl::string_view what;
  double factor = 1;
  double value = 0;
  // The best plan for that value; nothing: no plan is possible, for the reason in `note`.
  std::optional<Candidate> candidate;
  std::string note;
  // How that plan differs from the answer: in its mesh, and in the splits of so many layers.
  bool other_mesh = false;
  int other_layers = 0;

  bool changes() const { return other_mesh || other_layers > 0 || !candidate; }
};

// Bandwidth times 1/4, 1/2, 2 and 4; batch times 1/2 and 2; memory one byte below what the answer
// needs. Cost: one search each.
std::vector<Variation> VaryInputs(const PlanQuestion& question, const SearchResult& answer);

// Whether the searches of VaryInputs take so little time that they need not be requested.
bool VaryingIsCheap(const PlanQuestion& question, const SearchResult& answer);

}  // namespace cadre
