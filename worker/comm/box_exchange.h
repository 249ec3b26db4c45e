// Carries out moves (tensor/move.h) over the ranks of a group.
//
// Tensors lie in the memory of the kernels' device and may be of any type that the kernels copy and
// add boxes of; messages are of the same type. On devices other than the host a run is enqueued on
// the current lane, as the transport's calls are.
//
// Guarantees: sums are added in the order that the move lists, so the bits depend on the plan
// alone; of bf16, each addition is rounded to bf16. Nothing is sent for what a rank has itself.
// Threads: as the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"
#include "tensor/move.h"
#include "tensor/values.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {

class BoxExchange {
 public:
  // Borrows both.
  BoxExchange(MeshCommunicators& comms, Kernels& kernels) : comms_(comms), kernels_(kernels) {}

  // make = the exchange of have. A collective of the exchange's members; every rank of the group
  // calls the exchanges of a move in the same order. Requires: values of one type and of the boxes'
  // sizes that do not overlap.
  absl::Status Run(const Exchange& exchange, ConstValues have, Values make);

  // All steps. Requires: !move.is_identity().
  absl::Status Run(const Move& move, ConstValues have, Values make);

  // Takes the scratch of a move of elements of `type` before it is run first. True: scratch that
  // was there has moved. Requires: nothing is under way.
  bool Reserve(const Move& move, DType type);
  // Bytes of scratch that it holds.
  int64_t buffer_bytes() const {
    return static_cast<int64_t>(outgoing_.size() + arriving_.size() + between_.size());
  }

 private:
  using Scratch = DeviceArray<std::byte>;

  // True: it had to grow.
  bool Grow(Scratch& scratch, int64_t elements, DType type);
  // What goes to each member, in place or packed; what goes to oneself is not among it.
  std::vector<std::span<const std::byte>> Pack(const Exchange& exchange, ConstValues have);
  // Where what comes from each member arrives: in `make`, or beside it.
  std::vector<Values> Room(const Exchange& exchange, Values make);

  MeshCommunicators& comms_;
  Kernels& kernels_;
  // Messages that are not one run of memory are packed here.
  Scratch outgoing_;
  Scratch arriving_;
  Scratch between_;
};

}  // namespace cadre
