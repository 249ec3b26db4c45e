// Measures the links between the members of a communicator, after a group has connected and before
// it selects its algorithms.
//
// Takes about a third of a second on fast links and a few seconds on very slow ones. Sizes and
// repetitions follow from the first measurements, on which the members agree, so all members
// execute the same calls. If a token bucket shapes the link, its burst is used up before anything
// is timed.
//
// Threads: as the communicator.
#pragma once

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "kernels/backend.h"
#include "plan/cost/collective_cost.h"

namespace cadre {

// A collective of all members. Values are the maximum over the members of each member's median or
// mean, with equal bits on all members; zero for a single member. `samples`: also times all-reduces
// of float32, which takes half of the time: every size that fits into the time limit, by ring,
// butterfly, halving-doubling and, if available, native. Errors: as the communicator.
absl::StatusOr<LinkProfile> MeasureLink(Communicator& all, bool samples = true);

// The same, with samples, over a device's transport: data is in the memory of the kernels' device,
// and calls are enqueued on its current stream. A measurement lasts from the first call until all
// enqueued work is done. Alpha is the time of an exchange of four bytes, one of several that are
// enqueued together and not captured; it includes the work of NCCL's host thread for each exchange.
// `host`: the same members in the same order over the host's transport, over which they agree on
// sizes and results.
absl::StatusOr<LinkProfile> MeasureDeviceLink(Communicator& all, Communicator& host,
                                              Backend& kernels);

}  // namespace cadre
