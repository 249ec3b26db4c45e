// The communicators of one rank over the axes of its group's mesh.
//
// Over({"data"}) is the communicator of the ranks that differ from this one only along `data`.
// Communicators are created on first use and shared by all callers on the same channel.
//
// Thread-safe. A communicator and a channel (transport.h) are for one thread at a time, so that all
// ranks execute collectives in the same order. Borrows the transport.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "tensor/mesh.h"

namespace cadre {

class MeshCommunicators {
 public:
  // Requires: mesh.ranks() == transport.size(); the transport outlives the object.
  MeshCommunicators(Transport& transport, Mesh mesh);

  const Mesh& mesh() const { return mesh_; }
  int rank() const { return transport_.rank(); }
  Transport& transport() const { return transport_; }

  // The communicator of the ranks that differ from this one only along `axes`; its members have the
  // order of Mesh::Peers.
  Communicator& Over(const std::vector<std::string>& axes, int channel = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // All ranks of the group.
  Communicator& All(int channel = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  // Requires: the list contains this rank and is the same on all its members.
  Communicator& Among(const std::vector<int>& members, int channel = 0) ABSL_LOCKS_EXCLUDED(mutex_);

  // Prepares native collectives over these sets of axes (Transport::PrepareMembers); the set of all
  // axes is always prepared. A collective of all ranks of the group, with equal arguments, while no
  // other call is in progress.
  absl::Status Prepare(std::span<const std::vector<std::string>> axes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts bytes that were sent over the transport without a communicator.
  void AddSent(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    sent_otherwise_ += bytes;
  }
  // Payload bytes that this rank has sent over all its communicators, and otherwise.
  uint64_t bytes_sent() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Seconds that its communicators on a channel have spent in the transport.
  double seconds(int channel) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Transport& transport_;
  const Mesh mesh_;
  mutable absl::Mutex mutex_;
  std::map<std::pair<int, std::vector<int>>, std::unique_ptr<Communicator>> made_
      ABSL_GUARDED_BY(mutex_);
  uint64_t sent_otherwise_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre
