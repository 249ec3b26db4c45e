// Brace ranges of file names: "train-{000..015}.tar". Numbers are padded with zeros to the width of
// the first one. One range is enough for the shards of a data set, and its two ends suffice to
// check the limit of files; several ranges would multiply.
#include "model/shard_names.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace cadre {
namespace {

constexpr int64_t kMaxShards = 1'000'000;

// Digits only: SimpleAtoi alone would accept signs and spaces.
bool ParseNumber(absl::string_view digits, int64_t* number) {
  for (const char c : digits) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return absl::SimpleAtoi(digits, number);
}

std::string Padded(int64_t number, size_t digits) {
  const std::string text = absl::StrCat(number);
  return text.size() >= digits ? text : std::string(digits - text.size(), '0') + text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandShardNames(const std::string& pattern) {
  const auto error = [&pattern](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape(pattern), "' ", what,
                                                   "; a range is written {000..015}"));
  };
  const absl::string_view whole = pattern;
  const size_t open = whole.find('{');
  const size_t close = whole.find('}');
  if (open == whole.npos && close == whole.npos) return std::vector<std::string>{pattern};
  if (open == whole.npos || close == whole.npos || close < open) {
    return error("has unbalanced braces");
  }
  if (whole.find_first_of("{}", close + 1) != whole.npos ||
      whole.substr(open + 1, close - open - 1).find('{') != absl::string_view::npos) {
    return error("has more than one pair of braces");
  }
  const std::vector<absl::string_view> ends =
      absl::StrSplit(whole.substr(open + 1, close - open - 1), "..");
  int64_t first = 0;
  int64_t last = 0;
  if (ends.size() != 2 || !ParseNumber(ends[0], &first) || !ParseNumber(ends[1], &last)) {
    return error("has braces without a range");
  }
  if (last < first) return error("has a descending range");
  if (last - first >= kMaxShards) return error("expands to more than a million files");
  std::vector<std::string> names;
  for (int64_t n = first; n <= last; ++n) {
    names.push_back(
        absl::StrCat(whole.substr(0, open), Padded(n, ends[0].size()), whole.substr(close + 1)));
  }
  return names;
}

}  // namespace cadre
