// The communicators of one rank over the axes of its group's mesh.
//
// Over({"data"}) is the communicator of the ranks that differ from this one only along `data`.
// Made when first asked for, kept, and shared by everybody who asks.
//
// Thread-compatible: one thread per rank runs collectives, so that they happen in the same order on
// all ranks. Borrows the transport.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensor/mesh.h"
#include "worker/comm/communicator.h"
#include "worker/comm/transport.h"

namespace cadre {

class MeshCommunicators {
 public:
  // Requires: mesh.ranks() == transport.size(); the transport outlives the object.
  MeshCommunicators(Transport& transport, Mesh mesh);

  const Mesh& mesh() const { return mesh_; }
  int rank() const { return transport_.rank(); }

  // Members in the order of Mesh::Peers.
  Communicator& Over(const std::vector<std::string>& axes);
  // All ranks of the group.
  Communicator& All();
  // The members listed, this rank among them. Requires: the same list on all of them.
  Communicator& Among(const std::vector<int>& members);

  // Payload that this rank has sent over all of its communicators.
  uint64_t bytes_sent() const;

 private:
  Transport& transport_;
  const Mesh mesh_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> by_members_;
};

}  // namespace cadre
