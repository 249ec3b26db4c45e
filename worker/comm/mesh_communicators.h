// The communicators of one rank over the axes of its group's mesh.
//
// Over({"data"}) is the communicator of the ranks that differ from this one only along `data`.
// Made when first asked for, kept, and shared by everybody who asks for it on the same channel.
//
// Thread-safe; a communicator itself is for one thread at a time, and so is a channel
// (transport.h), so that collectives happen in the same order on all ranks. Borrows the transport.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensor/mesh.h"
#include "worker/comm/communicator.h"
#include "worker/transport/transport.h"

namespace cadre {

class MeshCommunicators {
 public:
  // Requires: mesh.ranks() == transport.size(); the transport outlives the object.
  MeshCommunicators(Transport& transport, Mesh mesh);

  const Mesh& mesh() const { return mesh_; }
  int rank() const { return transport_.rank(); }
  Transport& transport() const { return transport_; }

  // Members in the order of Mesh::Peers.
  Communicator& Over(const std::vector<std::string>& axes, int channel = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // All ranks of the group.
  Communicator& All(int channel = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // The members listed, this rank among them. Requires: the same list on all of them.
  Communicator& Among(const std::vector<int>& members, int channel = 0) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes native collectives ready over these sets of axes (Transport::PrepareMembers); over all
  // axes they always are. A collective of all ranks of the group, with equal arguments, before any
  // of them is needed and while nothing is under way. Sets that are the same ranks are prepared
  // once.
  absl::Status Prepare(std::span<const std::vector<std::string>> axes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Payload that this rank has sent over all of its communicators.
  uint64_t bytes_sent() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Seconds that its communicators on a channel have spent in the transport.
  double seconds(int channel) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Transport& transport_;
  const Mesh mesh_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<int, std::vector<int>>, std::unique_ptr<Communicator>> made_
      ABSL_GUARDED_BY(mutex_);
  // What Prepare has made ready.
  std::set<std::vector<std::vector<int>>> prepared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre
