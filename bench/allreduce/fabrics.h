// The fabrics that bench_allreduce compares.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/allreduce/algorithm.h"
#include "bench/allreduce/board.h"
#include "worker/transport/transport.h"

namespace cadre::bench {

// The collectives of Cadre, with one algorithm for each of tensor/collective.h and "auto", which
// measures the links and chooses the algorithm with the lowest cost for each size.
std::unique_ptr<Fabric> MakeCadreFabric(std::unique_ptr<Transport> transport);

// The same between processes: over TCP with `connections` connections for each pair (0: chosen as
// in a training group), or over shared memory. Errors: FailedPrecondition if the ranks end up
// connected by something else.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectCadre(Member& member, bool tcp, int connections);

// Gloo over TCP on the loopback device. `folder` is empty at first; ranks leave their addresses
// there. Errors: FailedPrecondition if the program was built without Gloo.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectGloo(Member& member, const std::string& folder);

// Names of Gloo's implementations that `algorithm` stands for, all of them for "auto".
// "ring-chunked", "halving-doubling" and "bcube" are classes, created once for a buffer; "new-ring"
// and "new-bcube" are the function gloo::allreduce. Errors: FailedPrecondition without Gloo;
// InvalidArgument if Gloo has no such algorithm for this type and number of ranks.
absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks);

// An upper bound for what a loopback connection can do: two processes exchange the bytes of an
// all-reduce in both directions over one TCP connection, by plain send and recv, without adding.
// Requires: two ranks.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectSocket(Member& member);

}  // namespace cadre::bench
