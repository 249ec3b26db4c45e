// gflags prints the flags of all linked libraries with --help and ends the process with exit code 1
// after an unknown flag. Daemons print their own flags only, in the spelling with dashes, and end
// with kExitBadFlags after one line, so that a supervisor can distinguish a wrong command
// line from a failure. Unknown arguments are therefore found before gflags parses the command line.
#include "base/program_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

DECLARE_bool(help);
DECLARE_bool(helpshort);

namespace cadre {
namespace {

const char* ProgramName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

bool Known(const std::string& name, bool* takes_next) {
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo(name.c_str(), &info)) {
    *takes_next = info.type != "bool";
    return true;
  }
  *takes_next = false;
  return absl::StartsWith(name, "no") && gflags::GetCommandLineFlagInfo(name.c_str() + 2, &info) &&
         info.type == "bool";
}

// Every value that a string flag of the program was given, in order, by the name of the flag with
// underscores.
std::multimap<std::string, std::string>& GivenValues() {
  static auto* const values = new std::multimap<std::string, std::string>();
  return *values;
}

// gflags calls it for every value, whether that comes from the command line or from a flag file,
// and for the defaults of flags that are not given.
bool OnValue(const char* name, const std::string& value) {
  if (!value.empty()) GivenValues().emplace(name, value);
  return true;
}

void CollectValues(absl::string_view source) {
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  for (const gflags::CommandLineFlagInfo& flag : flags) {
    if (!absl::EndsWith(flag.filename, source) || flag.type != "string") continue;
    gflags::RegisterFlagValidator(static_cast<const std::string*>(flag.flag_ptr), OnValue);
  }
}

// The first argument that is neither a known flag nor the value of one; null if there is none.
// gflags would end the process with exit code 1 for it.
const char* FirstUnknown(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument.size() < 2 || argument[0] != '-') return argv[i];
    argument.remove_prefix(absl::StartsWith(argument, "--") ? 2 : 1);
    const size_t equals = argument.find('=');
    bool takes_next = false;
    if (!Known(std::string(argument.substr(0, equals)), &takes_next)) return argv[i];
    if (takes_next && equals == absl::string_view::npos) ++i;
  }
  return nullptr;
}

// `text` in lines of at most 76 characters after an indentation of 6.
std::string Wrapped(absl::string_view text) {
  std::string lines;
  size_t width = 0;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool fits = !lines.empty() && width + 1 + word.size() <= 76;
    absl::StrAppend(&lines, fits ? " " : lines.empty() ? "      " : "\n      ", word);
    width = fits ? width + 1 + word.size() : word.size();
  }
  return lines;
}

void PrintHelp(const char* usage, absl::string_view source) {
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  std::sort(flags.begin(), flags.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::printf("%s\n\nFlags:\n", usage);
  for (const gflags::CommandLineFlagInfo& flag : flags) {
    const bool common = absl::StrContains(flag.filename, "base/daemon/");
    if (!common && !absl::EndsWith(flag.filename, source)) continue;
    std::string name = absl::StrReplaceAll(flag.name, {{"_", "-"}});
    if (flag.type != "bool") absl::StrAppend(&name, "=", flag.type);
    const std::string value =
        flag.default_value.empty() ? "" : absl::StrCat(" (default: ", flag.default_value, ")");
    std::printf("  --%s%s\n%s\n", name.c_str(), value.c_str(), Wrapped(flag.description).c_str());
  }
}

}  // namespace

std::optional<int> ParseProgramFlags(const char* usage, const char* version, const char* source,
                                     int* argc, char*** argv) {
  gflags::SetUsageMessage(usage);
  gflags::SetVersionString(version);
  if (const char* unknown = FirstUnknown(*argc, *argv); unknown != nullptr) {
    std::fprintf(stderr, "%s: unknown flag or argument '%s'; see --help\n", ProgramName((*argv)[0]),
                 unknown);
    return kExitBadFlags;
  }
  CollectValues(source);
  gflags::ParseCommandLineNonHelpFlags(argc, argv, true);
  if (FLAGS_help || FLAGS_helpshort) {
    PrintHelp(usage, source);
    return 0;
  }
  gflags::HandleCommandLineHelpFlags();  // --version, and gflags' other help flags
  return std::nullopt;
}

std::vector<std::string> AllValues(const std::string& name) {
  std::vector<std::string> values;
  const auto [begin, end] = GivenValues().equal_range(name);
  for (auto value = begin; value != end; ++value) values.push_back(value->second);
  return values;
}

}  // namespace cadre
