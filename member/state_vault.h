// Keeps a rank's optimizer states in host memory from one generation of its group to the next, so
// that re-forming the group does not lose them. Another vault keeps, in the same way, what codes
// have left out of the group's contributions (ShardExchange).
//
// Optimizer states belong to a group: they are not averaged, and no aggregator has them. A snapshot
// contains the states of the slices that a rank owned when it contributed to a round; they change
// only in training, so they belong to whichever version the group adopts afterwards. The next
// generation may start from the version of the last contribution, if the group was ended after the
// round was closed, or else from the version before it. So the vault holds at most two snapshots.
//
// Each snapshot is copied to another rank of the group, so that the loss of one rank loses no
// states; the copies are on other hosts, so that the loss of one host loses none either, if no host
// has more than half of the ranks. A vault so holds four times the rank's optimizer states, and
// what leaving ranks have handed over; that of a rank that is alone, once or, with overlap, twice.
//
// In the next generation the ranks may be others, and own other slices. They exchange what they
// hold for the version that they start from or, if the other groups have gone on without theirs,
// for the newest one before it, as a group that is late keeps its states. Positions that no rank
// holds for that version come from the newest one before it for which a rank does; others begin
// again with zero, and with a count of zero updates of their own.
//
// A rank replaces what it holds only when all ranks have what they need of it, so a group that
// fails meanwhile loses nothing.
//
// Outlives generations; used by the training thread. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "member/owned.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tensor/interval.h"

namespace cadre {

class StateVault {
 public:
  // The states of a rank: for each state tensor of the optimizer, the owned values; the positions
  // are the same for all tensors. `updates`: those of the positions that have a state, in the
  // order of the owned values, whose intervals contain them.
  struct States {
    std::vector<std::vector<Owned>> tensors;
    std::vector<UpdateCount> updates;
  };

  // What is held for `version`, with what other ranks have copied to this one.
  struct Snapshot {
    uint32_t version = 0;
    uint32_t generation = 0;
    std::vector<UpdateCount> positions;
    // For each state tensor, the values of the positions in order.
    std::vector<std::vector<float>> tensors;
  };

  // A generation begins. Frees the snapshots of another run or group, and those of before a
  // rollback.
  void Enter(const v1::Assignment& assignment);

  // Begins the snapshot at the contribution to `round`: the caller stores its values, a number of
  // tensors of one value for each position, before it calls anything else. Their values are
  // unspecified at first.
  Snapshot& Keep(uint32_t round, std::vector<UpdateCount> positions, size_t tensors);
  // Copies the states at the contribution.
  void Keep(uint32_t round, const States& states);
  // As Keep, in place of all snapshots.
  void Replace(uint32_t version, const States& states);
  // Drops the snapshots of `version` and of later ones.
  void DropFrom(uint32_t version);
  void Clear() { snapshots_.clear(); }
  // A collective, after Keep on all ranks: copies the snapshots to other ranks.
  absl::Status Replicate(Communicator& group);
  // Snapshots of later versions are dropped, since the run does not have these. `settle` receives
  // the others and may change their counts and tensors; false: the snapshot is dropped.
  void Settle(uint32_t version, absl::FunctionRef<bool(Snapshot& snapshot)> settle);

  // A collective. Overwrites the values of `states`, and its updates, with what the ranks hold for
  // `version`, or else for the newest version before it, and then keeps them for `version`. Returns
  // the number of positions (summed over the ranks) whose states were found; 0: nothing is changed.
  // Drops snapshots of later versions, which the run does not have.
  absl::StatusOr<int64_t> Restore(uint32_t version, States* states, Communicator& group);

  // The memory that the values have now.
  int64_t AllocatedBytes() const;

  // A collective. Ranks i with leaving[i] give their snapshots for `version` to the next rank that
  // stays. When it returns, these ranks have them.
  absl::Status HandOver(uint32_t version, const std::vector<bool>& leaving, Communicator& group);

 private:
  // `snapshot` gets these positions, and tensors of their size.
  void Resize(uint32_t version, std::vector<UpdateCount> positions, size_t tensors,
              Snapshot& snapshot) const;
  // `snapshot` becomes one of the states.
  void Fill(uint32_t version, const States& states, Snapshot& snapshot) const;
  // Replaces snapshots of its version and of later ones.
  void Push(Snapshot snapshot);
  // A collective: adds to the snapshot that of another rank.
  absl::Status CopyToPeer(Snapshot& snapshot, Communicator& group);
  // A collective. Each rank sends its snapshot to rank receivers[index()], which adds it to its
  // own; a rank that is its own receiver sends it to no peer.
  static absl::Status Give(Snapshot& snapshot, std::span<const int> receivers, Communicator& group);

  std::string lineage_;
  uint32_t branch_ = 0;
  // Where the ranks are, and which rank has the copy of each; the latter are known after the first
  // copies of a generation.
  std::vector<std::string> hosts_;
  std::vector<int> receivers_;
  uint32_t group_ = 0;
  uint32_t generation_ = 0;
  // The newest first.
  std::deque<Snapshot> snapshots_;
};

}  // namespace cadre
