// There are two ways to handle SIGINT, SIGTERM and SIGHUP. Most commands may end at any point, so a
// signal handler exits immediately. Commands that start processes block the signals instead and
// receive them in their main loop with sigtimedwait: no code runs in a signal handler, and no other
// thread receives them (cli/process.cc unblocks them in child processes).
#include "cli/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace cadre {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kSignals) sigaddset(&set, number);
  return set;
}

// The signal handler. It makes only async-signal-safe calls.
void ExitImmediately(int number) { _exit(128 + number); }

}  // namespace

void BlockInterrupts() {
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

std::optional<int> TakeInterrupt(absl::Duration timeout) {
  const sigset_t set = InterruptSet();
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const timespec wait = absl::ToTimespec(left);
    const int number = sigtimedwait(&set, nullptr, &wait);
    if (number > 0) return number;
    if (errno != EINTR) return std::nullopt;
  }
}

void ExitOnInterrupt() {
  struct sigaction action = {};
  action.sa_handler = ExitImmediately;
  sigemptyset(&action.sa_mask);
  for (const int number : kSignals) sigaction(number, &action, nullptr);
}

}  // namespace cadre
