// cadre: parses the command line and calls the verb.
#include <glog/logging.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/command_options.h"
#include "cli/completion.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/verb.h"

namespace cadre {
namespace {

int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

Console MakeConsole(const CommandLine& line) {
  return {.out = std::cout,
          .err = std::cerr,
          .out_terminal = isatty(STDOUT_FILENO) != 0,
          .err_terminal = isatty(STDERR_FILENO) != 0,
          .color = line.Value<std::string>("color") != "never",
          .width = TerminalWidth};
}

int UsageError(const absl::Status& status, const Verb* verb) {
  std::cerr << "cadre: " << status.message() << "\n";
  if (verb != nullptr) std::cerr << "usage: " << Usage(*verb) << "\n";
  std::cerr << "see 'cadre help" << (verb == nullptr ? "" : absl::StrCat(" ", verb->name)) << "'"
            << std::endl;
  return kExitUsage;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == kCompleteCommand) {
    for (const std::string& word : Completions(std::span(words).subspan(1))) {
      std::cout << word << "\n";
    }
    return kExitOk;
  }
  absl::StatusOr<CommandLine> line = CommandLine::Parse(words);
  if (!line.ok()) return UsageError(line.status(), CommandLine::VerbOf(words));
  // `cadre VERB --help` is `cadre help VERB`, and so is `--version`.
  if (line->help() || line->version()) {
    std::vector<std::string> instead = {line->help() ? "help" : "version"};
    if (line->help() && !line->arguments().empty()) instead.push_back(line->arguments().front());
    line = CommandLine::Parse(instead);
  }
  const Verb* verb = line->verb();
  if (verb == nullptr) {
    std::cerr << GeneralHelp() << std::flush;
    return kExitUsage;
  }
  if (!verb->handles_interrupts) ExitOnInterrupt();
  const absl::StatusOr<int> code = verb->run({*line, GlobalOptionsOf(*line), MakeConsole(*line)});
  return code.ok() ? *code : UsageError(code.status(), verb);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  const int code = cadre::Main(argc, argv);
  // A full disk, for example, shows only when the last text is flushed.
  std::cout.flush();
  if (!std::cout && code == 0) {
    std::cerr << "cadre: cannot write to stdout" << std::endl;
    return 1;
  }
  return code;
}
