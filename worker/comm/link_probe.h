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

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tensor/collective.h"
#include "worker/comm/communicator.h"

namespace cadre {

struct LinkMeasure {
  // Latency of an empty message in seconds, from barriers. On a device transport: the time of an
  // exchange of four bytes, one of several that are enqueued together and not captured; it includes
  // the work of NCCL's host thread for each exchange.
  double alpha = 0;
  // Seconds per byte when every member sends to one member and receives from another concurrently.
  double beta = 0;
  // Seconds to add one received byte of float32 data.
  double gamma = 0;
  // Processor seconds, user and system, for one byte sent and one received.
  double processor = 0;

  // All-reduces of float32 by every size and algorithm (ring, butterfly, halving-doubling, and
  // native if available) that fitted into the time limit.
  struct Sample {
    Algorithm algorithm = Algorithm::kNone;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples;
};

struct LinkProbeOptions {
  // If false, no all-reduces are timed, which halves the duration.
  bool samples = true;
};

// A collective of all members, with equal options. Values are the maximum over the members of each
// member's median or mean, with equal bits on all members; zero for a single member. Errors: as the
// communicator.
absl::StatusOr<LinkMeasure> MeasureLink(Communicator& all, const LinkProbeOptions& options = {});

// The same over a device's transport: data is in the memory of the kernels' device, and calls are
// enqueued on its current stream. A measurement lasts from the first call until all enqueued work
// is done. `host`: the same members in the same order over the host's transport, over which they
// agree on sizes and results.
absl::StatusOr<LinkMeasure> MeasureDeviceLink(Communicator& all, Communicator& host,
                                              Backend& kernels,
                                              const LinkProbeOptions& options = {});

}  // namespace cadre
