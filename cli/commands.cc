// All errors are reported here. Errors of parsing and of flags are usage errors (cli/console.h),
// with the usage and exit code 2. All other errors are one line on stderr; their status code
// determines the exit code, on which scripts rely.
#include "cli/commands.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/completion.h"
#include "cli/interrupt.h"

namespace cadre {
namespace {

int FailUsage(const Console& console, const absl::Status& status, const Verb* verb) {
  console.err << "cadre: " << status.message() << "\n";
  if (verb != nullptr) console.err << "usage: " << Usage(*verb) << "\n";
  console.err << "see 'cadre help" << (verb == nullptr ? "" : absl::StrCat(" ", verb->name)) << "'"
              << std::endl;
  return kExitUsage;
}

}  // namespace

int RunCommandLine(std::span<const std::string> words, Console console) {
  if (!words.empty() && words.front() == kCompleteCommand) {
    for (const std::string& word : Completions(words.subspan(1))) console.out << word << "\n";
    return kExitOk;
  }
  absl::StatusOr<CommandLine> line = CommandLine::Parse(words);
  if (!line.ok()) return FailUsage(console, line.status(), CommandLine::VerbOf(words));
  // `cadre VERB --help` is `cadre help VERB`, and so is `--version`.
  if (line->help() || line->version()) {
    std::vector<std::string> instead = {line->help() ? "help" : "version"};
    if (!line->help()) instead.push_back("--client");
    if (line->help() && !line->arguments().empty()) instead.push_back(line->arguments().front());
    line = CommandLine::Parse(instead);
  }
  const Verb* verb = line->verb();
  if (verb == nullptr) {
    console.err << GeneralHelp() << std::flush;
    return kExitUsage;
  }
  const char* const no_color = getenv("NO_COLOR");
  if (line->Value<std::string>("color") == "never" || (no_color != nullptr && *no_color != '\0')) {
    console.color = false;
  }
  if (!verb->handles_interrupts) ExitOnInterrupt();
  const absl::StatusOr<int> code = verb->run({*line, GlobalOptionsOf(*line), console});
  if (code.ok()) return *code;
  return IsUsageError(code.status()) ? FailUsage(console, code.status(), verb)
                                     : Fail(console, code.status());
}

}  // namespace cadre
