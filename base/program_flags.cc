#include "base/program_flags.h"

#include <gflags/gflags.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
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

// The first word that is neither a known flag nor a flag's value; null if there is none. gflags
// itself ends the process with 1 for these.
const char* FirstUnknown(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (word.size() < 2 || word[0] != '-') return argv[i];
    word.remove_prefix(absl::StartsWith(word, "--") ? 2 : 1);
    const size_t equals = word.find('=');
    bool takes_next = false;
    if (!Known(std::string(word.substr(0, equals)), &takes_next)) return argv[i];
    if (takes_next && equals == absl::string_view::npos) ++i;
  }
  return nullptr;
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
  gflags::ParseCommandLineNonHelpFlags(argc, argv, true);
  if (FLAGS_help || FLAGS_helpshort) {
    gflags::ShowUsageWithFlagsRestrict((*argv)[0], source);
    return 0;
  }
  gflags::HandleCommandLineHelpFlags();  // --version and the rarer forms of help
  return std::nullopt;
}

}  // namespace cadre
