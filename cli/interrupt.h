// Signals that ask the program to end: Ctrl-C, SIGTERM, a closed terminal.
//
// Either BlockInterrupts and TakeInterrupt (a program with something to put in order), or
// ExitOnInterrupt (one without). Call before any thread is made.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace cadre {

// From now on the signals wait for TakeInterrupt, in all threads.
void BlockInterrupts();

// Waits at most `timeout` for a signal and returns its number.
std::optional<int> TakeInterrupt(absl::Duration timeout);

// The signals end the process with exit code 128 + number (130 for Ctrl-C).
void ExitOnInterrupt();

}  // namespace cadre
