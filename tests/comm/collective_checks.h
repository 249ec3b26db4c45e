// Checks of collectives over any transport, with data on the host, on emulated devices or on GPUs.
//
// All ranks of `data` call each check, in the same order, on one thread per rank. Failures are
// reported to GoogleTest.
#pragma once

#include "comm/transport/transport.h"
#include "kernels/backend.h"

namespace cadre {

// The transports of one rank: `data` for memory of the kernels' device, and `host` between the same
// ranks. For data on the host both are the same.
struct DeviceRank {
  Backend& kernels;
  Transport& data;
  Transport& host;
};

// Sums of all types by all algorithms.
void CheckAllReduces(const DeviceRank& rank);
// Reduce-scatter and all-gather with random intervals and with equal, adjacent ones.
void CheckIntervals(const DeviceRank& rank);
// Equal bits to the host transport for sums that depend on the order of additions.
void CheckSameBitsAsOnHost(const DeviceRank& rank);
void CheckAllToAllAndBroadcast(const DeviceRank& rank);

// For transports on devices:
// Native collectives along mesh axes, before and after Prepare. Requires: an even number of ranks.
void CheckMeshAxes(const DeviceRank& rank);
// Collectives on two streams, each with its own channel.
void CheckChannels(const DeviceRank& rank);
// A captured call, launched several times.
void CheckCapture(const DeviceRank& rank);
void CheckBytesSent(const DeviceRank& rank);
void CheckLinkProbe(const DeviceRank& rank);

// All checks that apply to a transport on a device.
void CheckEverything(const DeviceRank& rank);

}  // namespace cadre
