// A fake NCCL for tests, among the threads of one process: it implements the functions of
// worker/transport/nccl/nccl_api.h. Each rank is a thread with an emulated device.
//
// Like NCCL: operations are enqueued and wait for their peers inside the stream (in the calling
// thread with EmulatedCuda::Mode::kInline); the operations of a group make progress together; a
// send ends when it has been received; operations can be captured; non-blocking communicators
// return ncclInProgress until all ranks have joined; operations do not end by themselves if a rank
// is lost. Sums are added in the order of the ranks, fp32 in fp32, bf16 in fp32 and rounded once. A
// communicator belongs to the device that was current when it was made, and does not work on other
// devices. Stricter: buffers must be within allocations of the device; a group's operations of one
// communicator must use one stream; operations of peers that do not match fail the test with a
// message that names both, and the communicator. Unlike NCCL: operations of one communicator on two
// streams are not ordered.
//
// Ranks, also in the functions that inject faults, are those passed to ncclCommInitRank. One object
// is one network, and must outlive the use of its communicators. Thread-safe.
#pragma once

#include "tests/emulator/fake_nccl_network.h"

namespace cadre {

using FakeNccl = emulated::Network;

}  // namespace cadre
