// Measures what lies between the members of a communicator, when a group has connected and before
// it chooses how to reduce.
//
// Takes about a third of a second on fast links and a few seconds on very slow ones: how often and
// how large things are measured follows from how long the first ones took, by numbers on which all
// members have agreed, so that all do the same. What a link lets through at first (a token bucket's
// burst) is used up before anything is timed.
//
// Threads: as the communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernels.h"
#include "tensor/collective.h"
#include "worker/comm/communicator.h"

namespace cadre {

struct LinkMeasure {
  // Seconds until an empty message is there: from barriers, which are nothing else. Over a device's
  // transport: until one of four bytes has left and one has come, in a row of such exchanges, which
  // are enqueued, not recorded: each costs NCCL a thread of the host.
  double alpha = 0;
  // Seconds that a byte takes when every member sends to one and receives from another at once.
  double beta = 0;
  // Seconds to add a byte (of float32) that has arrived.
  double gamma = 0;
  // Processor seconds, of the process and of the kernel in its name, for a byte that is sent and
  // one that is received meanwhile.
  double processor = 0;

  // All-reduces of float32, as long as there was time: every size was tried by ring, butterfly and
  // halving-doubling in turn, and natively where the transport has that.
  struct Sample {
    Algorithm algorithm = Algorithm::kNone;
    int64_t bytes = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples;
};

struct LinkProbeOptions {
  // False: no all-reduces are timed, which takes half the time.
  bool samples = true;
};

// All members call it, with equal options. Medians of what each member saw, and of these the
// largest: every member gets the same bits. One member: all zero. Errors: as the communicator.
absl::StatusOr<LinkMeasure> MeasureLink(Communicator& all, const LinkProbeOptions& options = {});

// The same over a device's transport: data lies in the kernels' device, on whose current lane it
// travels, and a reading lasts from the first call until all that it enqueued has happened. `host`:
// the same members in the same order over the host's transport, for what they agree on.
absl::StatusOr<LinkMeasure> MeasureDeviceLink(Communicator& all, Communicator& host,
                                              Kernels& kernels,
                                              const LinkProbeOptions& options = {});

}  // namespace cadre
