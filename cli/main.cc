// The program cadre: one command line with a verb for each command (cli/verbs.cc).
#include <glog/logging.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"

namespace {

// Asked for each redrawn line, because the window may have been resized; 80 without a terminal.
int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

int main(int argc, char** argv) {
  // A write beyond the limit of the file size returns an error instead of ending the process.
  signal(SIGXFSZ, SIG_IGN);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const int code = cadre::RunCommandLine(words, {.out = std::cout,
                                                 .err = std::cerr,
                                                 .out_terminal = isatty(STDOUT_FILENO) != 0,
                                                 .err_terminal = isatty(STDERR_FILENO) != 0,
                                                 .color = true,
                                                 .width = TerminalWidth});
  // An error such as a full disk may occur only when the last text is flushed.
  std::cout.flush();
  if (!std::cout && code == 0) {
    std::cerr << "cadre: cannot write to stdout" << std::endl;
    return 1;
  }
  return code;
}
