// Brace ranges of file names: "train-{000..015}.tar". Numbers are padded with zeros to the width of
// the first one. One range is enough for the shards of a data set, and its two ends suffice to
// check the limit of files; several ranges would multiply.
#include "model/shard_names.h"

#include <cstdint>
#include <utility>
#include <vector>

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

absl::StatusOr<ShardNames> ShardNames::Parse(const std::string& pattern) {
  const auto error = [&pattern](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("'", absl::CHexEscape(pattern), "' ", what,
                                                   "; a range is written {000..015}"));
  };
  const absl::string_view whole = pattern;
  const size_t open = whole.find('{');
  const size_t close = whole.find('}');
  ShardNames names;
  if (open == whole.npos && close == whole.npos) {
    names.before_ = pattern;
    return names;
  }
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
  names.before_ = std::string(whole.substr(0, open));
  names.after_ = std::string(whole.substr(close + 1));
  names.numbered_ = true;
  names.first_ = first;
  names.digits_ = ends[0].size();
  names.size_ = last - first + 1;
  return names;
}

std::string ShardNames::operator[](int64_t index) const {
  if (!numbered_) return before_;
  return absl::StrCat(before_, Padded(first_ + index, digits_), after_);
}

}  // namespace cadre
