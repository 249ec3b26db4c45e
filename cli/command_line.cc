#include "cli/command_line.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/edit_distance.h"
#include "base/status.h"

// Flags may precede the verb, so words are split before the verb is known. Whether a flag takes a
// value is looked up over all verbs; a test checks that all verbs agree on it. Flags that the verb
// does not take are refused afterwards.

namespace cadre {
namespace {

// One flag as it is written: "--name=value" without its dashes.
struct FlagWord {
  std::string name;
  std::optional<std::string> value;
};

// Splits a flag at "=". One or two dashes are accepted, as in gflags.
FlagWord SplitFlag(absl::string_view word) {
  if (!absl::ConsumePrefix(&word, "--")) absl::ConsumePrefix(&word, "-");
  const size_t equals = word.find('=');
  if (equals == absl::string_view::npos) return {std::string(word), std::nullopt};
  return {std::string(word.substr(0, equals)), std::string(word.substr(equals + 1))};
}

// The global flag of that name, or the flag of the first verb that has one; null if none has.
const Flag* FindAnywhere(absl::string_view name) {
  if (const Flag* flag = FindFlag(GlobalFlags(), name)) return flag;
  for (const Verb& verb : Verbs()) {
    if (const Flag* flag = FindFlag(verb.flags, name)) return flag;
  }
  return nullptr;
}

// The switch that "--noname" or "--no-name" turns off; null if there is none.
const Flag* FindNegated(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "no")) return nullptr;
  const Flag* flag = FindAnywhere(absl::StripPrefix(name, "-"));
  return flag != nullptr && flag->kind == ValueKind::kSwitch ? flag : nullptr;
}

// Searches the flags of `verb` first, because verbs may explain flags of one name differently.
const Flag* FindFor(const Verb* verb, absl::string_view name) {
  if (const Flag* flag = FindFlag(GlobalFlags(), name)) return flag;
  return verb == nullptr ? nullptr : FindFlag(verb->flags, name);
}

// "; did you mean PREFIXnameSUFFIX?" with the nearest of the elements' names and `names`; "" if
// none is near.
template <typename Element, typename NameOf>
std::string Suggestion(absl::string_view word, absl::string_view prefix, absl::string_view suffix,
                       const std::vector<Element>& elements, NameOf name_of,
                       std::vector<std::string> names = {}) {
  for (const Element& element : elements) names.emplace_back(name_of(element));
  const std::optional<std::string> nearest = Nearest(word, names);
  return nearest ? absl::StrCat("; did you mean ", prefix, *nearest, suffix, "?") : "";
}

// The error for a flag that no verb has. It suggests the nearest flag of the verb.
absl::Status UnknownFlag(absl::string_view written, const Verb* verb) {
  const std::string name = absl::StrReplaceAll(written, {{"_", "-"}});
  std::vector<Flag> flags = GlobalFlags();
  if (verb != nullptr) flags.insert(flags.end(), verb->flags.begin(), verb->flags.end());
  return UsageError(
      absl::StrCat("unknown flag --", name,
                   Suggestion(name, "--", "", flags, [](const Flag& flag) { return flag.name; },
                              {"help", "version"})));
}

// The error for a flag of other verbs. It names these, because the user usually meant one of them.
absl::Status ForeignFlag(const Flag& flag, const Verb& verb) {
  std::vector<std::string> owners;
  for (const Verb& other : Verbs()) {
    if (FindFlag(other.flags, flag.name))
      owners.push_back(absl::StrCat("'cadre ", other.name, "'"));
  }
  return UsageError(absl::StrCat(FlagName(flag), " is not a flag of 'cadre ", verb.name,
                                 "', only of ", absl::StrJoin(owners, ", ")));
}

// "table or json"; "a, b or c".
std::string Choices(const Flag& flag) {
  const auto last = flag.choices.end() - 1;
  if (last == flag.choices.begin()) return std::string(*last);
  return absl::StrCat(absl::StrJoin(flag.choices.begin(), last, ", "), " or ", *last);
}

// A plain number means seconds.
std::optional<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return std::nullopt;
  }
  if (!(duration > absl::ZeroDuration()) || duration == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return duration;
}

std::optional<bool> ParseBool(const std::string& text) {
  bool value = false;
  if (!absl::SimpleAtob(text, &value)) return std::nullopt;
  return value;
}

// Describes the values that the flag takes if `text` is not one of them; "" if it is.
std::string Expected(const Flag& flag, const std::string& text) {
  uint64_t count = 0;
  double number = 0;
  switch (flag.kind) {
    case ValueKind::kSwitch:
      return ParseBool(text) ? "" : "true or false";
    case ValueKind::kChoice: {
      const bool known =
          std::find(flag.choices.begin(), flag.choices.end(), text) != flag.choices.end();
      return known ? "" : Choices(flag);
    }
    case ValueKind::kCount:
      if (absl::SimpleAtoi(text, &count) && count >= flag.min && count <= flag.max) return "";
      if (count > flag.max) return absl::StrCat("a whole number of at most ", flag.max);
      return absl::StrCat("a whole number of at least ", flag.min);
    case ValueKind::kNumber:
      if (absl::SimpleAtod(text, &number) && number >= flag.low && number <= flag.high) return "";
      if (flag.low == std::numeric_limits<double>::lowest()) return "a number";
      return absl::StrCat("a number from ", flag.low, " to ", flag.high);
    case ValueKind::kDuration:
      return ParseDuration(text) ? "" : "a duration above 0, such as 90s, 5m or 1h30m";
    default:
      return "";
  }
}

absl::Status CheckValue(const Flag& flag, const std::string& text) {
  const std::string expected = Expected(flag, text);
  if (expected.empty()) return absl::OkStatus();
  return UsageError(absl::StrCat(FlagName(flag), " takes ", expected, ", not '", text, "'"));
}

}  // namespace

const Flag* FindFlag(const std::vector<Flag>& flags, absl::string_view name) {
  const std::string dashed = absl::StrReplaceAll(name, {{"_", "-"}});
  const auto at = std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) {
    return flag.name == dashed || (name.size() == 1 && flag.letter == name[0]);
  });
  return at == flags.end() ? nullptr : &*at;
}

const Verb* FindVerb(absl::string_view name) {
  for (const Verb& verb : Verbs()) {
    if (verb.name == name) return &verb;
  }
  return nullptr;
}

absl::Status UnknownVerb(absl::string_view name) {
  return UsageError(absl::StrCat(
      "unknown verb '", name, "'",
      Suggestion(name, "'", "'", Verbs(), [](const Verb& verb) { return verb.name; })));
}

absl::StatusOr<CommandLine> CommandLine::Parse(std::span<const std::string> words) {
  CommandLine line;
  line.verb_ = VerbOf(words);
  CADRE_RETURN_IF_ERROR(line.Split(words));
  if (line.arguments_.empty() || line.help_ || line.version_) return line;
  if (line.verb_ == nullptr) return UnknownVerb(line.arguments_.front());
  line.arguments_.erase(line.arguments_.begin());
  CADRE_RETURN_IF_ERROR(line.CheckArguments());
  CADRE_RETURN_IF_ERROR(line.CheckFlags());
  return line;
}

// The error is that of Parse, which reports it; the words before it may contain the verb.
const Verb* CommandLine::VerbOf(std::span<const std::string> words) {
  CommandLine line;
  const absl::Status ignored = line.Split(words);
  return line.arguments_.empty() ? nullptr : FindVerb(line.arguments_.front());
}

absl::Status CommandLine::Split(std::span<const std::string> words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      arguments_.insert(arguments_.end(), words.begin() + i + 1, words.end());
      break;
    }
    // "-" alone is an argument: by custom, stdin or stdout.
    if (word.size() < 2 || word[0] != '-') {
      arguments_.push_back(word);
      continue;
    }
    const FlagWord written = SplitFlag(word);
    // `cadre --version` prints that of the program; some verbs have a flag of this name.
    const bool of_program =
        written.name == "version" && !written.value && FindFor(verb_, written.name) == nullptr;
    if (const Flag* flag = of_program ? nullptr : FindAnywhere(written.name)) {
      const bool needs_value = flag->kind != ValueKind::kSwitch && !written.value;
      if (needs_value && i + 1 == words.size()) {
        return UsageError(absl::StrCat(FlagName(*flag), " needs a value"));
      }
      values_[std::string(flag->name)] = needs_value ? words[++i] : written.value.value_or("true");
    } else if (const Flag* off = FindNegated(written.name); off != nullptr && !written.value) {
      values_[std::string(off->name)] = "false";
    } else if (written.name == "help" || written.name == "h") {
      help_ = true;
    } else if (written.name == "version") {
      version_ = true;
    } else {
      return UnknownFlag(written.name, verb_);
    }
  }
  return absl::OkStatus();
}

// Values are checked against the verb's own row, since verbs may allow different ranges.
absl::Status CommandLine::CheckFlags() {
  for (const auto& [name, value] : values_) {
    const Flag* flag = FindFor(verb_, name);
    if (flag == nullptr) return ForeignFlag(*FindAnywhere(name), *verb_);
    CADRE_RETURN_IF_ERROR(CheckValue(*flag, value));
  }
  for (const Flag& flag : verb_->flags) {
    if (!flag.required || Has(flag.name)) continue;
    return UsageError(absl::StrCat("missing flag ", FlagName(flag)));
  }
  return absl::OkStatus();
}

// In the table, required arguments precede optional ones, and a repeated one is last.
absl::Status CommandLine::CheckArguments() const {
  size_t i = 0;
  for (const Argument& argument : verb_->arguments) {
    if (argument.repeated) return absl::OkStatus();
    if (i++ < arguments_.size() || argument.optional) continue;
    return UsageError(absl::StrCat("missing argument ", argument.name));
  }
  if (i >= arguments_.size()) return absl::OkStatus();
  return UsageError(absl::StrCat("unexpected argument '", arguments_[i], "'"));
}

std::vector<std::string> CommandLine::given() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) {
    if (!FindFlag(GlobalFlags(), name)) names.push_back(name);
  }
  return names;
}

// A flag that no verb has is an error in the program, not of the user.
std::optional<std::string> CommandLine::Text(absl::string_view flag) const {
  DCHECK(FindAnywhere(flag) != nullptr) << flag;
  if (const auto at = values_.find(std::string(flag)); at != values_.end()) return at->second;
  const Flag* found = FindFor(verb_, flag);
  if (found == nullptr || found->fallback.empty()) return std::nullopt;
  return std::string(found->fallback);
}

void CommandLine::Convert(const std::string& text, std::string& value) { value = text; }
void CommandLine::Convert(const std::string& text, bool& value) { value = *ParseBool(text); }
void CommandLine::Convert(const std::string& text, uint32_t& value) {
  CHECK(absl::SimpleAtoi(text, &value)) << text;
}
void CommandLine::Convert(const std::string& text, uint64_t& value) {
  CHECK(absl::SimpleAtoi(text, &value)) << text;
}
void CommandLine::Convert(const std::string& text, double& value) {
  CHECK(absl::SimpleAtod(text, &value)) << text;
}
void CommandLine::Convert(const std::string& text, absl::Duration& value) {
  value = *ParseDuration(text);
}

}  // namespace cadre
