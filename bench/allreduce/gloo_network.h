// Gloo over TCP on the loopback device, one contestant for each of its all-reduces. gloo_network.cc
// is built where Debian's libgloo-dev is installed, no_gloo.cc elsewhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/allreduce/contestant.h"

namespace cadre::bench {

// Names of Gloo's algorithms that stand for `algorithm` among `ranks` ranks; "auto": all of them.
// "ring-chunked", "halving-doubling" and "bcube" are classes that are made once for a buffer;
// "new-ring" and "new-bcube" are the function gloo::allreduce.
// Errors: FailedPrecondition, built without Gloo; InvalidArgument, Gloo has no such algorithm for
// this type and number of ranks.
absl::StatusOr<std::vector<std::string>> GlooAlgorithms(absl::string_view algorithm, DType dtype,
                                                        int ranks);

// `folder`: empty at first, where the ranks leave their addresses for one another.
absl::StatusOr<std::unique_ptr<Network>> MakeGlooNetwork(int rank, int ranks,
                                                         const std::string& folder,
                                                         absl::Duration timeout);

}  // namespace cadre::bench
