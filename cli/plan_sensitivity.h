// What would change the answer: the same question on a faster or slower link, with a larger or
// smaller batch, with less memory.
//
// Values and pure functions; thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/plan_answer.h"
#include "cli/plan_question.h"
#include "coordinator/plan/search.h"

namespace cadre {

struct Variation {
  // "bandwidth", "batch" or "memory", by how much it is multiplied (1 for memory), and what it then
  // is: bytes a second, samples, bytes a rank.
  std::string what;
  double factor = 1;
  double value = 0;
  // The best plan then; nothing: `note` says why there is none.
  std::optional<Candidate> candidate;
  std::string note;
  // The mesh differs, or the layouts of so many layers.
  bool other_mesh = false;
  int other_layers = 0;

  bool changes() const { return other_mesh || other_layers > 0 || !candidate; }
};

// Bandwidth times 1/4, 1/2, 2 and 4; batch times 1/2 and 2; memory: a byte less than the answer
// needs. Requires: the answer was searched.
std::vector<Variation> Vary(const PlanQuestion& question, const SearchResult& answer);

// Whether that is worth its time without being asked for: it takes as many searches again.
bool VaryUnasked(const PlanQuestion& question, const SearchResult& answer);

std::string VariationsText(const std::vector<Variation>& variations);
std::string VariationsJson(const std::vector<Variation>& variations);

}  // namespace cadre
