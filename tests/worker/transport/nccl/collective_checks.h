// What collectives over a device's transport must do, whatever device it is: the checks that ranks
// on emulated devices (threads) and on a GPU (processes) share.
//
// All ranks of `data` call each, in the same order, on a thread of their own. Failures are
// GoogleTest's.
#pragma once

#include "kernels/backend.h"
#include "worker/transport/transport.h"

namespace cadre {

// A rank's ends: data on its device, and the same ranks on the host.
struct DeviceRank {
  Backend& kernels;
  Transport& data;
  Transport& host;
};

// By ring, butterfly, halving-doubling and natively: sums that are exact in any order, any type.
void CheckAllReduces(const DeviceRank& rank);
// Any intervals: uneven, empty, apart, and those that NCCL has a collective of its own for.
void CheckPieces(const DeviceRank& rank);
// Bit for bit what the host's transport gives on numbers whose sums depend on their order.
void CheckSameBitsAsOnHost(const DeviceRank& rank);
void CheckAllToAllAndBroadcast(const DeviceRank& rank);
// Native among some of the ranks, after Prepare; refused in words before. Needs an even number of
// ranks.
void CheckPartsOfAMesh(const DeviceRank& rank);
// Two streams, a channel each, at the same time.
void CheckChannels(const DeviceRank& rank);
// A recorded call does the same each time that it is played.
void CheckRecording(const DeviceRank& rank);
void CheckBytesSent(const DeviceRank& rank);
void CheckLinkProbe(const DeviceRank& rank);

// All of them that fit the number of ranks.
void CheckEverything(const DeviceRank& rank);

}  // namespace cadre
