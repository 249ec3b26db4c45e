// Carries out moves (tensor/move.h) over the ranks of a group.
//
// Guarantees: sums are added in the order that the move lists, so the bits depend on the plan
// alone. Nothing is sent for what a rank has itself. Threads: as the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "tensor/move.h"
#include "worker/comm/mesh_communicators.h"

namespace cadre {

class BoxExchange {
 public:
  // Borrows the communicators.
  explicit BoxExchange(MeshCommunicators& comms) : comms_(comms) {}

  // make = the exchange of have. A collective of the exchange's members; every rank of the group
  // calls the exchanges of a move in the same order. Requires: spans of the boxes' sizes that do
  // not overlap.
  absl::Status Run(const Exchange& exchange, std::span<const float> have, std::span<float> make);

  // All steps. Requires: !move.is_identity().
  absl::Status Run(const Move& move, std::span<const float> have, std::span<float> make);

  // Takes the scratch of a move before it is run first.
  void Reserve(const Move& move);
  // Bytes of scratch that it holds.
  int64_t buffer_bytes() const {
    return static_cast<int64_t>(
        sizeof(float) * (outgoing_.capacity() + arriving_.capacity() + between_.capacity()));
  }

 private:
  // What goes to each member, in place or packed; what goes to oneself is not among it.
  std::vector<std::span<const std::byte>> Pack(const Exchange& exchange,
                                               std::span<const float> have);
  // Where what comes from each member arrives: in `make`, or beside it.
  std::vector<std::span<float>> Room(const Exchange& exchange, std::span<float> make);

  MeshCommunicators& comms_;
  // Messages that are not one run of memory are packed here.
  std::vector<float> outgoing_;
  std::vector<float> arriving_;
  std::vector<float> between_;
};

}  // namespace cadre
