// Signals that request the end of the program: Ctrl-C, SIGTERM, a closed terminal.
//
// A command that must clean up uses BlockInterrupts and TakeInterrupt, all others ExitOnInterrupt.
// Call BlockInterrupts or ExitOnInterrupt before any thread is started.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace cadre {

// From now on the signals stay pending, in all threads, until TakeInterrupt.
void BlockInterrupts();

// Waits for a signal, at most `timeout`, and returns its number.
std::optional<int> TakeInterrupt(absl::Duration timeout);

// From now on the signals end the process with exit code 128 + number (130 for Ctrl-C).
void ExitOnInterrupt();

}  // namespace cadre
