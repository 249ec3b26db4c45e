// Settings of OpenMP that suit training, for programs that compute with MakeCpuBackend.
//
// Not thread-safe: called at the beginning of main.
#pragma once

namespace cadre {

// GCC's OpenMP library reads its settings from the environment before main. Unless the user has set
// GOMP_SPINCOUNT or OMP_WAIT_POLICY, sets the former and executes the program again, with the same
// process id and arguments: it returns in the second execution, or if the program cannot be
// executed again.
//
// The setting limits for how long a thread that waits for work keeps its core busy: long enough
// for the next loop of a step, but not for a message, since the core may be needed by a thread that
// communicates or loads samples, or by another rank.
//
// Nothing else needs a setting: every loop states its number of threads (threads.h), and the CPUs
// are those to which the process is bound (base/numa.h).
void EnsureOpenMpSettings(char** argv);

}  // namespace cadre
