// The transport over connections that stand; see transport.h for what it promises.
//
// A message is a header (kind, tag, length) and the payload. A transport that ends well sends each
// peer a header of kind goodbye before it closes, so that an end of stream without one is a death.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/socket.h"
#include "worker/comm/transport.h"

namespace cadre {

// `sockets`: connected, non-blocking, by rank; the own entry is empty.
// Errors: ResourceExhausted for no descriptor left.
absl::StatusOr<std::unique_ptr<Transport>> MakeSocketTransport(int rank,
                                                               std::vector<Socket> sockets,
                                                               absl::Duration timeout);

}  // namespace cadre
