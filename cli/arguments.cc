#include "cli/arguments.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace cadre {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that make `a` of `b`.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

absl::Status UnknownFlag(absl::string_view name, const FlagRegistry& flags) {
  const std::vector<std::string> names = flags.Names();
  const std::optional<std::string> nearest = Nearest(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name,
                   nearest ? absl::StrCat("; did you mean --", *nearest, "?") : std::string()));
}

// One flag, split at its "=" if it has one.
struct FlagWord {
  std::string name;
  std::optional<std::string> value;
};

FlagWord SplitFlag(absl::string_view word) {
  if (!absl::ConsumePrefix(&word, "--")) absl::ConsumePrefix(&word, "-");
  const size_t equals = word.find('=');
  if (equals == absl::string_view::npos) return {std::string(word), std::nullopt};
  return {std::string(word.substr(0, equals)), std::string(word.substr(equals + 1))};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseArguments(std::span<const std::string> arguments,
                                                        FlagRegistry& flags) {
  std::vector<std::string> words;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      words.insert(words.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    // "-" alone is a word by custom.
    if (argument.size() < 2 || argument[0] != '-') {
      words.push_back(argument);
      continue;
    }
    const FlagWord flag = SplitFlag(argument);
    const std::optional<bool> takes_value = flags.TakesValue(flag.name);
    if (takes_value.has_value() && *takes_value && !flag.value) {
      if (i + 1 == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat("flag --", flag.name, " needs a value"));
      }
      CADRE_RETURN_IF_ERROR(flags.Set(flag.name, arguments[++i]));
    } else if (takes_value.has_value()) {
      CADRE_RETURN_IF_ERROR(flags.Set(flag.name, flag.value.value_or("true")));
    } else if (absl::string_view name = flag.name;
               absl::ConsumePrefix(&name, "no") && !flag.value &&
               flags.TakesValue(absl::StripPrefix(name, "-")) == false) {
      CADRE_RETURN_IF_ERROR(flags.Set(absl::StripPrefix(name, "-"), "false"));
    } else {
      return UnknownFlag(flag.name, flags);
    }
  }
  return words;
}

std::optional<std::string> Nearest(absl::string_view word, std::span<const std::string> words) {
  std::optional<std::string> nearest;
  // One slip in three letters is still a slip; more is another word.
  size_t best = word.size() / 3 + 2;
  for (const std::string& candidate : words) {
    const size_t distance = Distance(word, candidate);
    const bool begun = word.size() >= 2 && absl::StartsWith(candidate, word);
    const size_t rank = begun ? std::min<size_t>(distance, 1) : distance;
    if (rank < best && rank < std::max(word.size(), candidate.size())) {
      best = rank;
      nearest = candidate;
    }
  }
  return nearest;
}

absl::StatusOr<double> ParseSeconds(absl::string_view text) {
  double seconds = 0;
  absl::Duration duration;
  if (!absl::SimpleAtod(text, &seconds)) {
    if (!absl::ParseDuration(text, &duration)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not a time; write it as 90, 90s, 5m or 1h30m"));
    }
    seconds = absl::ToDoubleSeconds(duration);
  }
  if (!std::isfinite(seconds) || seconds <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a time above zero"));
  }
  return seconds;
}

}  // namespace cadre
