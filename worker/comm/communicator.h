// Collectives among some ranks of a group: the ranks along one or more axes of the mesh.
//
// Every member makes one with the same list and channel and calls the same collectives in the same
// order; ranks outside the list take no part. Several communicators may share one transport.
// README.md has the steps and the bytes of each collective; schedule.h the algorithms.
//
// The transport is borrowed and must outlive the communicator. Threads: as the transport, one
// thread at a time over all communicators of a transport and channel.
//
// Guarantees: sums are added in an order that depends only on the algorithm, the number of members
// and the pieces, and have equal bits on all members and from run to run. With one member nothing
// is sent and data stays as it is. Members that disagree about collective, algorithm, type, length
// or order get an error that names both sides (see call_tag.h). After an error, data is unspecified
// and the group is dead (see transport.h); InvalidArgument is the exception: it is returned before
// anything is sent, and only for pieces, indices or types that cannot be right.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"
#include "worker/comm/schedule.h"
#include "worker/transport/call_tag.h"
#include "worker/transport/transport.h"

namespace cadre {

class Communicator {
 public:
  // `members`: ranks of the transport, in index order, such as Mesh::Peers gives.
  // Requires: no rank twice, this rank among them; 0 <= channel < Transport::kChannels.
  Communicator(Transport& transport, std::vector<int> members, int channel = 0);

  // This rank's place among the members.
  int index() const { return index_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  // Whether kNative is there for its members.
  bool has_native() const { return transport_.HasNativeFor(members_); }

  // Every member gets the sum of `data`, elements of `type`. kRing, kButterfly, kHalvingDoubling,
  // kHierarchical (which is halving-doubling between hosts), or kNative where the transport has
  // that for these members (MeshCommunicators::Prepare); InvalidArgument, in words, where it has
  // not.
  absl::Status AllReduce(Algorithm algorithm, DType type, std::span<std::byte> data);

  // Piece index() of `data` becomes its sum over the members; the rest is unspecified.
  // Requires: one piece per member, none overlapping, within the data, equal on all members.
  absl::Status ReduceScatter(Algorithm algorithm, DType type, std::span<std::byte> data,
                             std::span<const Piece> pieces);
  // Piece index() is given; afterwards all pieces are there. Pieces as above.
  absl::Status AllGather(Algorithm algorithm, DType type, std::span<std::byte> data,
                         std::span<const Piece> pieces);

  // Shorthand for the above.
  absl::Status AllReduceSum(std::span<float> data, Algorithm algorithm = Algorithm::kRing);
  // Piece i is data[offsets[i], offsets[i + 1]).
  absl::Status ReduceScatterSum(std::span<float> data, std::span<const int64_t> offsets,
                                Algorithm algorithm = Algorithm::kRing);
  absl::Status AllGather(std::span<float> data, std::span<const int64_t> offsets,
                         Algorithm algorithm = Algorithm::kRing);
  absl::Status AllGatherBytes(std::span<std::byte> data, std::span<const int64_t> offsets);
  // For a few numbers: by recursive doubling, which takes the fewest steps; native where the data
  // lies on a device and the transport has that for these members.
  absl::Status AllReduceSum(std::span<uint64_t> data);
  absl::Status AllReduceSum(std::span<double> data);

  // Member i gets send[i], and what it sends here arrives in receive[i]. Both sides of a pair know
  // the size; where it is 0 no message goes. All pairs at the same time.
  // Requires: a span per member in both; send[index()] and receive[index()] are of one size;
  // nothing that is received into overlaps with anything else.
  absl::Status AllToAll(std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive);

  // Every member gets what `root` (an index) has. By a binomial tree.
  absl::Status Broadcast(std::span<std::byte> data, int root);

  // Returns when every member has called it. Not over a transport on a device, where nothing that
  // is enqueued could hold the caller: InvalidArgument; the host's transport between the same ranks
  // has barriers.
  absl::Status Barrier();

  // Payload that this object has sent, and messages that carried it; of a native collective, whose
  // messages are the library's affair, what the ring would have sent. Any thread may ask.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t messages_sent() const { return messages_sent_.load(std::memory_order_relaxed); }
  // Seconds that its calls have spent in the transport, waiting or moving. Any thread may ask.
  double seconds() const {
    return 1e-9 * static_cast<double>(nanoseconds_.load(std::memory_order_relaxed));
  }

 private:
  // What decides a schedule.
  struct Shape {
    Collective collective = Collective::kNone;
    Algorithm algorithm = Algorithm::kNone;
    // Of the data.
    int64_t elements = 0;
    int root = 0;
    // Of a reduce-scatter and an all-gather.
    std::span<const Piece> pieces;
  };
  // One that was made.
  struct Made {
    Shape shape;
    std::vector<Piece> pieces;
    Schedule schedule;
    // Of each step; on a device only.
    std::vector<int> rounds;
    ScheduleWork sent;
  };

  absl::Status Run(const Shape& shape, DType type, std::span<std::byte> data);
  absl::Status RunNative(const Made& made, const CallTag& tag, std::span<std::byte> data);
  absl::StatusOr<const Made*> Find(const Shape& shape);
  // Errors: InvalidArgument, as above.
  absl::Status Check(const Shape& shape) const;
  absl::Status CheckAlgorithm(const Shape& shape) const;
  // Of member `index`.
  Schedule Make(const Shape& shape, int index) const;
  std::vector<int> RoundsOfOwn(const Shape& shape) const;
  // The best for a few numbers.
  Algorithm ForFew() const;
  // Adds to what was sent, calls, and counts the time.
  absl::Status Timed(uint64_t bytes, uint64_t messages, absl::FunctionRef<absl::Status()> call);
  absl::Status RunTransfers(const CallTag& tag, const Combine& combine, uint64_t bytes,
                            uint64_t messages);
  CallTag NextTag(Collective collective, Algorithm algorithm, DType type, uint64_t elements);
  int Rank(int index) const { return members_[static_cast<size_t>(index)]; }

  Transport& transport_;
  const std::vector<int> members_;
  const int channel_;
  int index_ = -1;
  // Of the members, in order.
  uint32_t group_ = 0;
  // Hosts of the members.
  std::vector<uint64_t> hosts_;
  // The last few, for a training step asks for the same ones again and again.
  std::vector<std::unique_ptr<Made>> made_;
  size_t next_made_ = 0;
  // Kept for its memory.
  std::vector<Transfer> transfers_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> messages_sent_{0};
  std::atomic<int64_t> nanoseconds_{0};
};

}  // namespace cadre
