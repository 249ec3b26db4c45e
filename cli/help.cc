// All texts derive from the table of verbs: a verb without an entry in the help, or a flag that the
// help describes but the parser does not know, cannot occur. The paragraphs and examples of a verb
// are in cli/help/VERB.txt, if there are any.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace cadre {
namespace {

constexpr size_t kColumns = 100;
// Column in which the explanation of a flag begins.
constexpr size_t kFlagColumn = 24;

// The text of a verb, as in its file.
struct HelpText {
  absl::string_view verb;
  absl::string_view text;
};
constexpr HelpText kTexts[] = {
#include "cli/help_texts.inc"
};
constexpr absl::string_view kExamples = "\nExamples:\n";

absl::string_view TextOf(absl::string_view verb) {
  const auto* const found = std::find_if(std::begin(kTexts), std::end(kTexts),
                                         [&](const HelpText& text) { return text.verb == verb; });
  return found == std::end(kTexts) ? "" : found->text;
}

// One flag: its label in the first column, the explanation, wrapped, in the second. A switch that
// is on by default is shown in the form that turns it off.
std::string FlagHelp(const Flag& flag) {
  std::string label = "  ";
  if (flag.letter != 0) absl::StrAppend(&label, "-", std::string(1, flag.letter), ", ");
  const bool turns_off = flag.kind == ValueKind::kSwitch && flag.fallback == "true";
  absl::StrAppend(&label, turns_off ? "--no-" : FlagName(flag), turns_off ? flag.name : "");
  if (!flag.value.empty()) absl::StrAppend(&label, " ", flag.value);
  std::string text(flag.help);
  if (flag.kind == ValueKind::kChoice) {
    absl::StrAppend(&text, ": ", absl::StrJoin(flag.choices, ", "));
  }
  if (!flag.fallback.empty() && !turns_off) {
    absl::StrAppend(&text, " (default ", flag.fallback, ")");
  }
  // If the label is too long for its column, the explanation starts on the next line.
  label += label.size() + 2 <= kFlagColumn ? std::string(kFlagColumn - label.size(), ' ')
                                           : "\n" + std::string(kFlagColumn, ' ');
  return absl::StrCat(label, Wrap(text, kColumns - kFlagColumn, kFlagColumn), "\n");
}

void AppendFlags(absl::string_view title, const std::vector<Flag>& flags, std::string& out) {
  if (flags.empty()) return;
  absl::StrAppend(&out, "\n", title, ":\n");
  for (const Flag& flag : flags) out += FlagHelp(flag);
}

}  // namespace

std::string FlagName(const Flag& flag) {
  return absl::StrCat(flag.name.size() == 1 ? "-" : "--", flag.name);
}

std::string Usage(const Verb& verb) {
  std::string usage = absl::StrCat("cadre ", verb.name);
  for (const Argument& argument : verb.arguments) {
    const bool optional = argument.optional || argument.repeated;
    absl::StrAppend(&usage, optional ? " [" : " ", argument.name, argument.repeated ? " ..." : "",
                    optional ? "]" : "");
  }
  for (const Flag& flag : verb.flags) {
    if (flag.required) absl::StrAppend(&usage, " ", FlagName(flag), " ", flag.value);
  }
  return absl::StrCat(usage, " [flags]");
}

std::string GeneralHelp() {
  std::string out =
      "Cadre trains one model on many machines with slow links between them.\n\n"
      "Usage: cadre VERB [arguments] [flags]\n\nVerbs:\n";
  for (const Verb& verb : Verbs()) {
    absl::StrAppendFormat(&out, "  %-16s%s\n", verb.name, verb.brief);
  }
  AppendFlags("Flags of every verb", GlobalFlags(), out);
  absl::StrAppend(&out,
                  "\nTry it:\n"
                  "  cadre local deploy/demo.textproto --groups 2 --ranks 2 --aggregators 2\n"
                  "\n'cadre help VERB' explains a verb, with examples.\n"
                  "Exit codes: 0 success, 1 failure, 2 usage error, 3 not found, 4 unavailable or "
                  "timed out,\n5 denied, 130 interrupted.\n");
  return out;
}

std::string VerbHelp(const Verb& verb) {
  std::string out =
      absl::StrCat("cadre ", verb.name, ": ", verb.brief, "\n\nUsage: ", Usage(verb), "\n");
  const absl::string_view text = TextOf(verb.name);
  const size_t examples = std::min(text.find(kExamples), text.size());
  if (examples > 0) absl::StrAppend(&out, "\n", text.substr(0, examples));
  AppendFlags("Flags", verb.flags, out);
  AppendFlags("Flags of every verb", GlobalFlags(), out);
  return absl::StrCat(out, text.substr(examples));
}

}  // namespace cadre
