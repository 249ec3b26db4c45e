// The environment variables of programs that compute on GPUs. No library reads or sets them: a main
// function does, and passes on what they say.
//
// Called from main only, before any thread starts and before CUDA is used.
#pragma once

namespace cadre {

// Sets these variables, for this process and those that it starts, unless they have a value:
//   NCCL_LAUNCH_ORDER_IMPLICIT=1    NCCL starts the work of several communicators in the order of
//                                   the host's calls (comm/placed_messages.cc)
//   CUDA_DEVICE_MAX_CONNECTIONS=32  hardware queues. A rank has five streams, and NCCL two for each
//                                   communicator. Two streams in one of the default 8 queues wait
//                                   for each other: a collective that waits for a peer would delay
//                                   work for which the peer waits
void SetGpuEnvironment();

// Whether CADRE_CUDA_SYNC=1 requests that devices wait for every operation, so that an error names
// the operation that failed (CudaDeviceOptions::synchronous). Slow; for debugging.
bool SynchronousGpu();

}  // namespace cadre
