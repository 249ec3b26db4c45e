// The log of gRPC, written as the log of the program. Peers cause its errors, such as failed
// handshakes, so each place in gRPC's code writes at most one line per second.
//
// Thread-safe.
#pragma once

namespace cadre {

// Later calls do nothing.
void LimitGrpcLog();

}  // namespace cadre
