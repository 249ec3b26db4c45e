// The limits of processes and threads: RLIMIT_NPROC of the user, and pids.max of the control group.
//
// Where a thread cannot be started, the C++ library throws and libraries wait without end. What
// counts against the limits, such as other processes of the user or the pods of a node, is not
// visible to every process. So programs try at their start whether their threads can be started.
//
// Thread-safe.
#pragma once

#include "absl/status/status.h"

namespace cadre {

// Threads of a member of a cluster: event loops and calls of gRPC, streams, and its own.
inline constexpr int kMemberThreads = 24;

// Starts `more` threads that exist at the same time, and ends them. Raises the soft limit of
// RLIMIT_NPROC as far as the hard limit permits.
// Errors: ResourceExhausted, which names the limits and the remedy.
absl::Status ReserveThreads(int more);

}  // namespace cadre
