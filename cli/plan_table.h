// `cadre plan` for people.
//
// Thread-safe (a pure function).
#pragma once

#include <string>

#include "cli/plan_prospect.h"

namespace cadre {

std::string ProspectText(const Prospect& prospect);

// What "exact" is said of: the sums that the search minimises, which are a step's seconds only
// where nothing overlaps.
std::string ExactNote(const SearchResult& searched, bool overlap);

}  // namespace cadre
