// A child process that is always killed and reaped with its owner.
//
// Owns the child: the destructor kills it if it still runs. The kernel also kills it when the
// thread that called Start ends, so that no child outlives a parent that was killed.
// Thread-compatible. Requires: Start is called on a thread that lives as long as the child should
// (in a program, the main thread).
//
//   CADRE_ASSIGN_OR_RETURN(Process worker, Process::Start({.program = "/usr/bin/env"}));
//   worker.Signal(SIGTERM);
//   if (!worker.WaitUntil(deadline)) worker.Kill();
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre {

// How a process ended.
struct Ending {
  // True: `code` is the signal that killed it; false: its exit code.
  bool signalled = false;
  int code = 0;

  bool operator==(const Ending&) const = default;
  // "exit code 3", "signal 9 (Killed)".
  std::string ToString() const;
};

struct ProcessOptions {
  // Path of the executable.
  std::string program;
  // Arguments of the program, without its own name.
  std::vector<std::string> arguments;
  // "NAME=value", in addition to the parent's environment; replaces variables of the same name.
  std::vector<std::string> environment;
  // File to which stdout and stderr are appended; empty: the parent's.
  std::string log;
};

class Process {
 public:
  // Guarantees: the child has its own process group (a terminal's Ctrl-C reaches only the parent),
  // no signals blocked, none of the parent's files but stdin (/dev/null), stdout and stderr.
  // Errors: NotFound, PermissionDenied, ... when the program cannot be run or the log not opened.
  static absl::StatusOr<Process> Start(const ProcessOptions& options);

  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }

  // Reaps the child and returns how it ended; nullopt while it runs.
  std::optional<Ending> Poll();
  // Like Poll, but waits until the child ends, at most until `deadline`.
  std::optional<Ending> WaitUntil(absl::Time deadline);
  // Sends a signal to the child; does nothing once the child is reaped.
  void Signal(int number);
  // Sends SIGKILL and waits for the end.
  Ending Kill();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}

  pid_t pid_ = -1;
  std::optional<Ending> ending_;
};

// The last `lines` lines of a file, at most its last 16 KiB; empty if it cannot be read.
std::vector<std::string> LastLines(const std::string& path, int lines);

}  // namespace cadre
