// The fabrics (connected ranks with an implementation of all-reduce, see algorithm.h) that
// bench_allreduce compares. A Member (board.h) is one rank of the benchmark.
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

// The collectives of Cadre. The algorithms are those of tensor/collective.h and "auto", which
// measures the links and chooses the algorithm with the lowest cost for each size.
std::unique_ptr<Fabric> MakeCadreFabric(std::unique_ptr<Transport> transport);

// The same between processes: over TCP with `connections` connections per pair of ranks (0: as many
// as in a training group), or over shared memory. Errors: FailedPrecondition if the ranks are
// connected in another way.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectCadre(Member& member, bool tcp, int connections);

// Gloo over TCP on the loopback device. `folder` is initially empty; ranks write their addresses to
// it. Errors: FailedPrecondition if the program was built without Gloo.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectGloo(Member& member, const std::string& folder);

// The names of Gloo's implementations for which `algorithm` stands; "auto" stands for all of them.
// "ring-chunked", "halving-doubling" and "bcube" are classes, created once for a buffer; "new-ring"
// and "new-bcube" are the function gloo::allreduce. Errors: FailedPrecondition without Gloo;
// InvalidArgument if Gloo has no such algorithm for this type and number of ranks.
absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks);

// An upper bound for the speed over loopback TCP: two processes exchange the bytes of an all-reduce
// in both directions over one connection, by plain send and recv, without adding. Requires: two
// ranks.
absl::StatusOr<std::unique_ptr<Fabric>> ConnectSocket(Member& member);

}  // namespace cadre::bench
