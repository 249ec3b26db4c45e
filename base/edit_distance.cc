#include "base/edit_distance.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace cadre {

// Dynamic programming over the table of prefix distances. Three rows are kept, because a swap
// depends on the row before the previous one.
size_t EditDistance(absl::string_view from, absl::string_view to) {
  std::vector<size_t> two_up(to.size() + 1);
  std::vector<size_t> above(to.size() + 1);
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    std::swap(two_up, above);
    std::swap(above, row);
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = above[j] + (from[i] == to[j] ? 0 : 1);
      row[j + 1] = std::min({row[j] + 1, above[j + 1] + 1, replaced});
      const bool swapped = i > 0 && j > 0 && from[i] == to[j - 1] && from[i - 1] == to[j];
      if (swapped) row[j + 1] = std::min(row[j + 1], two_up[j - 1] + 1);
    }
  }
  return row.back();
}

std::optional<std::string> Nearest(absl::string_view word,
                                   std::span<const std::string> candidates) {
  std::optional<std::string> nearest;
  // Up to one error in three letters counts as a misspelling.
  size_t best = word.size() / 3 + 2;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    const bool prefix = word.size() >= 2 && absl::StartsWith(candidate, word);
    const size_t rank = prefix ? std::min<size_t>(distance, 1) : distance;
    if (rank < best && rank < std::max(word.size(), candidate.size())) {
      best = rank;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace cadre
