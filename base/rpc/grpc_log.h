// The log of gRPC, written as the log of the program. Peers cause its errors, such as failed
// handshakes, so each place in gRPC's code writes at most one line per second.
//
// Thread-safe.
#pragma once

#include "absl/status/status.h"

namespace cadre {

// Later calls do nothing.
void LimitGrpcLog();

// After an error of accept, such as that of the limit of open files, gRPC does not listen on the
// port any more, and reports it in its log only: peers connect, and receive no answer. Then the
// status is ResourceExhausted, with the error and the limit, and the process must end. Requires:
// LimitGrpcLog was called before the server was started.
absl::Status CheckAccepting();

}  // namespace cadre
