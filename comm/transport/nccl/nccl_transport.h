// The transport of a group whose data is on GPUs: messages by ncclSend and ncclRecv, sums by the
// kernels, and whole collectives by NCCL if a plan selects `native`.
//
// Run and the native collectives *enqueue* on the device's current stream and return immediately;
// results are available to later work on that stream. As with every transport, all ranks make the
// calls of a channel (an independent order of messages, transport.h; not a channel of NCCL) in the
// same order. Control messages between the ranks use the host transport from which this one is
// created. The two fail together: an abort of one aborts the other, and the loss of a peer is
// usually detected by the host transport first.
//
// A list of transfers is executed in rounds (comm/rounds.h): the messages of a round are one
// ncclGroupStart/End, then received addends are added, then the next round follows. Addends are
// received into scratch.
//
// The calls of a channel must be enqueued on one stream, or on streams ordered by events. The first
// call with given members, algorithm and size is compared with the calls of the peers, over the
// host transport's channel kMoves (nccl_agreement.h), and allocates scratch. Therefore a call must
// run once before it is captured. Captured graphs must be destroyed before the transport.
//
// Owns its NCCL communicators: one of all ranks for each of the channels kMoves and kBackground,
// one for each of these channels and subset of the ranks that is passed to PrepareMembers, and with
// PrepareMessages one of all ranks for kSends, on which ranks also receive. Borrows
// device, kernels and host transport. Threads: one thread enqueues (device.h); Abort and status()
// are thread-safe. A watcher thread polls NCCL and the host transport for errors and then aborts
// the calls that NCCL has not completed.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/nccl_api.h"
#include "comm/transport/transport.h"
#include "device/cuda/cuda_device.h"
#include "kernels/backend.h"

namespace cadre {

struct NcclTransportOptions {
  // Maximum time until the communicators of all ranks are connected.
  absl::Duration init_timeout = absl::Minutes(2);
  // Maximum time, after that, for NCCL to connect a communicator's messages or to split it. The
  // host of a peer takes part, and may be busy with plans of cuDNN for minutes.
  absl::Duration call_timeout = absl::Minutes(20);
};

// A collective of all ranks of `host`. Rank 0 creates NCCL's unique id and sends it over the host
// transport. Errors: DeadlineExceeded, naming the operation; Unavailable for a lost rank; those of
// LoadNccl.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclApi& api, CudaDevice& device,
                                                             Backend& kernels, Transport& host,
                                                             const NcclTransportOptions& options);

}  // namespace cadre
