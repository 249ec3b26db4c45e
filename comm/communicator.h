// Collectives among some ranks of a group, such as the ranks along axes of the mesh.
//
// Every member constructs one with the same list and channel and calls the same collectives in the
// same order; other ranks do not participate. Several communicators may share one transport.
// README.md lists steps and bytes of each collective; schedule.h has the algorithms.
//
// The transport is borrowed and must outlive the communicator. Threads: as the transport, one
// thread at a time over all communicators of a transport and channel.
//
// Guarantees: the order of additions depends only on algorithm, number of members and intervals, so
// sums have equal bits on all members and in every run. With one member, calls send nothing and
// leave data unchanged. Members that disagree about collective, algorithm, type, length or order
// get an error that names both sides (see CallTag). After an error, data is unspecified and the
// group has failed (see transport.h), except after InvalidArgument, which is returned before any
// message is sent, for invalid intervals, indices or types.
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
#include "comm/schedule.h"
#include "comm/transport/transport.h"
#include "tensor/collective.h"
#include "tensor/dtype.h"

namespace cadre {

class Communicator {
 public:
  // `members`: ranks of the transport, in index order, such as Mesh::Peers gives.
  // Requires: no rank twice, this rank among them; 0 <= channel < Transport::kChannels.
  Communicator(Transport& transport, std::vector<int> members, int channel = 0);

  // This rank's index among the members.
  int index() const { return index_; }
  int size() const { return std::ssize(members_); }
  const std::vector<int>& members() const { return members_; }
  // Whether kNative is available for its members.
  bool has_native() const { return transport_.HasNativeFor(members_); }

  // Every member gets the sum of `data`, elements of `type`. kRing, kButterfly, kHalvingDoubling,
  // or kNative if the transport provides it for these members (MeshCommunicators::Prepare);
  // otherwise InvalidArgument.
  absl::Status AllReduce(Algorithm algorithm, DType type, std::span<std::byte> data);

  // Interval index() of `data` becomes its sum over the members; the rest is unspecified.
  // Requires: one interval per member, equal on all members, within the data, without overlaps.
  absl::Status ReduceScatter(Algorithm algorithm, DType type, std::span<std::byte> data,
                             std::span<const Interval> intervals);
  // Each member contributes interval index(); afterwards every member has all intervals.
  // Requires: intervals as above.
  absl::Status AllGather(Algorithm algorithm, DType type, std::span<std::byte> data,
                         std::span<const Interval> intervals);

  // Shorthands, which use a ring unless stated otherwise.
  absl::Status AllReduceSum(std::span<float> data, Algorithm algorithm = Algorithm::kRing);
  // Interval i is data[offsets[i], offsets[i + 1]).
  absl::Status AllGather(std::span<float> data, std::span<const int64_t> offsets);
  absl::Status AllGatherBytes(std::span<std::byte> data, std::span<const int64_t> offsets);
  // For a few numbers: recursive doubling, which takes the fewest steps; native on devices if
  // available for these members.
  absl::Status AllReduceSum(std::span<uint64_t> data);
  absl::Status AllReduceSum(std::span<double> data);

  // Sends send[i] to member i and receives receive[i] from member i, concurrently for all i. Both
  // sides of a pair know the size of a message; empty messages are omitted.
  // Requires: one span per member in both; send[index()] and receive[index()] have equal sizes;
  // spans to receive into do not overlap with other spans.
  absl::Status AllToAll(std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive);

  // Every member gets the data of member `root` (an index). Uses a binomial tree.
  absl::Status Broadcast(std::span<std::byte> data, int root);

  // Returns when every member has called it. InvalidArgument on a device transport, whose calls
  // only enqueue; use the host transport between the same ranks.
  absl::Status Barrier();

  // Payload bytes that this object has sent; a native collective counts as a ring. Thread-safe.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  // Seconds that its calls have spent in the transport. Thread-safe.
  double seconds() const { return 1e-9 * nanoseconds_.load(std::memory_order_relaxed); }

 private:
  // The parameters that determine a schedule.
  struct ScheduleKey {
    Collective collective = Collective::kNone;
    Algorithm algorithm = Algorithm::kNone;
    // Elements of the data.
    int64_t elements = 0;
    int root = 0;
    // Reduce-scatter and all-gather only.
    std::span<const Interval> intervals;
  };
  struct CachedSchedule {
    ScheduleKey key;
    std::vector<Interval> intervals;
    Schedule schedule;
    // Round of each step; on a device only. A round is a set of messages that are sent
    // concurrently, not a round of averaging.
    std::vector<int> rounds;
    // Elements that this member sends.
    int64_t sent = 0;
  };

  absl::Status Run(ScheduleKey key, DType type, std::span<std::byte> data);
  absl::Status RunNative(const CachedSchedule& cached, const CallTag& tag,
                         std::span<std::byte> data);
  absl::StatusOr<const CachedSchedule*> FindSchedule(const ScheduleKey& key);
  // Errors: InvalidArgument, as above.
  absl::Status Check(const ScheduleKey& key) const;
  absl::Status CheckAlgorithm(const ScheduleKey& key) const;
  // The schedule of member `index`.
  Schedule MakeSchedule(const ScheduleKey& key, int index) const;
  // The rounds of this member's steps (rounds.h).
  std::vector<int> OwnRounds(const ScheduleKey& key) const;
  // The algorithm for a few numbers.
  Algorithm SmallAlgorithm() const;
  // Executes `call` and updates the counters of bytes and time.
  absl::Status Timed(uint64_t bytes, absl::FunctionRef<absl::Status()> call);
  absl::Status RunTransfers(const CallTag& tag, const Combine& combine, uint64_t bytes);
  CallTag NextTag(Collective collective, Algorithm algorithm, DType type, uint64_t elements);
  int Rank(int index) const { return members_[index]; }

  Transport& transport_;
  const std::vector<int> members_;
  const int channel_;
  int index_ = -1;
  // Hash of the members, in order.
  uint32_t members_hash_ = 0;
  // A cache, because every training step repeats the same collectives.
  std::vector<std::unique_ptr<CachedSchedule>> schedules_;
  size_t next_evicted_ = 0;
  // Reused to avoid allocations.
  std::vector<Transfer> transfers_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<int64_t> nanoseconds_{0};
};

}  // namespace cadre
