// A plan report as text and as JSON (cli/render.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/render.h"
#include "lab/plan_report.h"

namespace cadre {

std::string ToText(const PlanReport& report);
Json ToJson(const PlanReport& report);

// States whether the search has minimized the sum of the times of layers and of the moves between
// them, which is the time of a step only if nothing overlaps.
std::string ExactNote(const SearchResult& searched, bool overlap);

}  // namespace cadre
