// Collectives among some ranks of a group: the ranks along one or more axes of the mesh.
//
// Every member makes one with the same list and calls the same collectives in the same order; ranks
// outside the list take no part. Several communicators may share one transport. README.md has the
// steps and the bytes of each collective.
//
// The transport is borrowed and must outlive the communicator. Threads: as the transport, one
// thread at a time over all communicators of a transport.
//
// Guarantees: sums are added in an order that depends only on the number of members and on the
// length, and are computed once and then copied, so they are equal in every bit on all members and
// from run to run. With one member nothing is sent and data stays as it is. After an error, data is
// unspecified and the group is dead (see transport.h); InvalidArgument is the exception: it is
// returned before anything is sent, and only for offsets or indices that cannot be right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/transport.h"

namespace cadre {

class Communicator {
 public:
  // `members`: ranks of the transport, in index order, such as Mesh::Peers gives.
  // Requires: no rank twice, this rank among them.
  Communicator(Transport& transport, std::vector<int> members);

  // This rank's place among the members.
  int index() const { return index_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }

  // Every member gets the sum. Cuts `data` into near-equal pieces (PartBegin) for the ring.
  absl::Status AllReduceSum(std::span<float> data);

  // Piece i is data[offsets[i], offsets[i + 1]). Afterwards piece index() holds the sum over the
  // members; the other pieces are unspecified.
  // Requires: offsets has size() + 1 ascending entries within data, equal on all members.
  absl::Status ReduceScatterSum(std::span<float> data, std::span<const int64_t> offsets);
  // Piece index() is given; afterwards all pieces are there. Offsets as above.
  absl::Status AllGather(std::span<float> data, std::span<const int64_t> offsets);
  // The same with offsets in bytes.
  absl::Status AllGatherBytes(std::span<std::byte> data, std::span<const int64_t> offsets);

  // Member i gets send[i], and what it sends here arrives in receive[i]. Both sides of a pair know
  // the size; where it is 0 no message goes. Pairwise: in step s with the members s before and
  // behind.
  // Requires: a span per member in both; send[index()] and receive[index()] are of one size;
  // nothing that is received into overlaps with anything else.
  absl::Status AllToAll(std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive);

  // Every member gets what `root` (an index) has. By a binomial tree.
  absl::Status Broadcast(std::span<std::byte> data, int root);

  // For a few numbers: gathered at index 0, added there in index order, broadcast.
  absl::Status AllReduceSum(std::span<uint64_t> data);
  absl::Status AllReduceSum(std::span<double> data);

  // Returns when every member has called it.
  absl::Status Barrier();

  // Payload that this object has sent, and messages that carried it.
  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t messages_sent() const { return messages_sent_; }

 private:
  enum class Kind : uint8_t {
    kReduceScatter = 1,
    kAllGather,
    kBroadcast,
    kGather,
    kBarrier,
    kAllToAll
  };

  // The tag of the next collective: equal on all members, different for a different collective.
  uint64_t NextTag(Kind kind);
  int Rank(int index) const { return members_[static_cast<size_t>(index)]; }
  // index + distance, around the ring.
  int Around(int distance) const;
  absl::Status CheckOffsets(size_t elements, std::span<const int64_t> offsets) const;

  absl::Status Send(int to, std::span<const std::byte> data, uint64_t tag);
  absl::Status Receive(int from, std::span<std::byte> data, uint64_t tag);
  absl::Status Exchange(int to, std::span<const std::byte> send, int from,
                        std::span<std::byte> receive, uint64_t tag);
  // All-gather of bytes; `scale` turns offsets into bytes.
  absl::Status RingAllGather(std::span<std::byte> data, std::span<const int64_t> offsets,
                             int64_t scale);
  // One step of a reduce-scatter: sends a piece on and adds what arrives to another.
  absl::Status PassOn(std::span<const float> mine, std::span<float> sum, uint64_t tag);
  template <typename T>
  absl::Status SmallSum(std::span<T> data);

  Transport& transport_;
  const std::vector<int> members_;
  int index_ = -1;
  // Tells communicators over different members apart, in tags.
  uint64_t id_ = 0;
  uint32_t sequence_ = 0;
  uint64_t bytes_sent_ = 0;
  uint64_t messages_sent_ = 0;
  // Floats that a reduce-scatter sends at a time: 1 MiB.
  static constexpr size_t kChunk = size_t{1} << 18;
  // Holds the chunk that arrives while a reduce-scatter adds.
  std::vector<float> arriving_;
};

}  // namespace cadre
