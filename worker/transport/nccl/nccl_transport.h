// The transport of a group whose data lies on GPUs: messages by ncclSend and ncclRecv, sums by the
// kernels, whole collectives by NCCL where a plan says `native`.
//
// Run and the native collectives *enqueue* on the device's current stream and return at once; what
// they move is there when work behind them on that stream runs. Between two calls on one channel
// all ranks keep one order, as on every transport. Control messages between the same ranks travel
// on the host transport that this one is made from; the two share their end: an abort of one aborts
// the other, and what kills a peer is heard there first.
//
// A list of transfers is cut into rounds: what nothing stands in the way of goes in one
// ncclGroupStart/End, then what arrived is added, then what waited for it goes (schedule.h's steps
// are such lists). A member's arriving sums lie in scratch beside the data until they are added.
//
// Calls of one channel go to one stream, or to streams that events put in order. The first call of
// its kind is compared with the peers' on the host transport's channel kMoves (nccl_agreement.h)
// and takes scratch; so a call is made once before it is recorded, and recordings are gone before
// the transport.
//
// Owns its NCCL communicators: one of all ranks for each of the channels kMoves and kBackground,
// and those of the parts that PrepareMembers names. Borrows device, kernels and host transport.
// Threads: one thread enqueues (device.h); Abort and status() are thread-safe: a watcher thread
// looks for errors of NCCL and for the end of the host transport, and aborts at once what NCCL
// still waits for.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"
#include "worker/transport/nccl/nccl_api.h"
#include "worker/transport/transport.h"

namespace cadre {

struct NcclTransportOptions {
  // Until all ranks' communicators stand.
  absl::Duration init_timeout = absl::Minutes(2);
};

// All ranks of `host` call it. Rank 0 makes NCCL's unique id; it travels over the host transport,
// whose peers and generation are the coordinator's. Errors: DeadlineExceeded, naming what the ranks
// waited for; Unavailable for a lost rank; those of LoadNccl.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclApi& api, CudaDevice& device,
                                                             Backend& kernels, Transport& host,
                                                             const NcclTransportOptions& options);

}  // namespace cadre
