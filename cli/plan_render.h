// A plan report as text and as JSON (cli/render.h).
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "cli/render.h"
#include "plan/report/plan_report.h"

namespace cadre {

std::string ToText(const PlanReport& report);
Json ToJson(const PlanReport& report);

// A sentence that states what "exact" refers to: the sums that the search minimises. These are the
// seconds of a step only if nothing overlaps.
std::string ExactNote(const SearchResult& searched, bool overlap);

}  // namespace cadre
