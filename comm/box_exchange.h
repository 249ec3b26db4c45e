// Executes moves (tensor/move.h), which change the layout of a tensor, among the ranks of a group.
//
// Tensors are in the memory of the kernels' device and of any type for which the kernels can copy
// and add boxes; messages have the same type. On devices other than the host, Run only enqueues
// work on the current stream, as the transport's calls do.
//
// Guarantees: sums are added in the order that the move lists, so bits depend on the plan alone;
// with bf16, each addition is rounded to bf16. A rank sends no message to itself.
// Threads: as the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "comm/mesh_communicators.h"
#include "device/device.h"
#include "kernels/backend.h"
#include "tensor/dtype.h"
#include "tensor/move.h"
#include "tensor/values.h"

namespace cadre {

class BoxExchange {
 public:
  // Borrows both.
  BoxExchange(MeshCommunicators& comms, Backend& kernels) : comms_(comms), kernels_(kernels) {}

  // Computes `make` from `have` by one exchange. A collective of the exchange's members; all ranks
  // of the group call the exchanges of a move in the same order. Requires: both have one type and
  // the sizes of the boxes, and do not overlap.
  absl::Status Run(const Exchange& exchange, ConstValues have, Values make);

  // The transfers that send this rank's messages to others. Those that are not contiguous in `have`
  // are packed into `scratch`, on a device by work on the current stream. Requires:
  // exchange.packed_elements() elements of scratch. The result borrows both.
  std::vector<Transfer> Pack(const Exchange& exchange, ConstValues have, Values scratch);
  // The transfers that receive what the others send in an exchange, in `make` or in `scratch`, and
  // the rest of Run after them. Between the calls, on a device also between the work that they
  // enqueue on the current stream, only the transfers use both. Requires:
  // exchange.unpacked_elements() elements of scratch.
  std::vector<Transfer> PrepareReceives(const Exchange& exchange, Values scratch, Values make);
  void FinishReceives(const Exchange& exchange, ConstValues have, Values scratch, Values make);

  // Executes all steps. Requires: !move.is_identity().
  absl::Status Run(const Move& move, ConstValues have, Values make);

  // Allocates the scratch of a move of elements of `type` before its first run. Returns whether
  // existing scratch was reallocated. Requires: no run is in progress.
  bool Reserve(const Move& move, DType type);
  // Bytes of scratch.
  int64_t buffer_bytes() const {
    return send_scratch_.size() + receive_scratch_.size() + intermediate_.size();
  }

 private:
  using Scratch = DeviceArray<std::byte>;

  // Returns whether existing scratch was reallocated.
  bool Grow(Scratch& scratch, int64_t elements, DType type);
  // The message to each other member, in `have` or packed into `scratch`.
  std::vector<std::span<const std::byte>> Messages(const Exchange& exchange, ConstValues have,
                                                   Values scratch);
  // The destination of the message from each other member: in `make` or in `scratch`.
  static std::vector<Values> ReceiveBuffers(const Exchange& exchange, Values scratch, Values make);
  // Copies or adds what was received, and what the rank has itself, into the result.
  void Unpack(const Exchange& exchange, ConstValues have, std::span<const Values> buffers,
              Values make);

  MeshCommunicators& comms_;
  Backend& kernels_;
  // Messages that are not contiguous in a tensor.
  Scratch send_scratch_;
  Scratch receive_scratch_;
  Scratch intermediate_;
};

}  // namespace cadre
