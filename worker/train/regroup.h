// Moves values of a group's model between the slices that ranks own, which depend on the plan, and
// contiguous parts of the parameter order, which do not: each rank exchanges one part with the
// aggregators when contributions or versions are coded.
//
// Thread-compatible; borrows the communicator.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor/interval.h"
#include "worker/comm/communicator.h"
#include "worker/train/owned.h"

namespace cadre {

class Regroup {
 public:
  // A collective. `owned`: the positions of this rank's slices, in any order; `part`: those of its
  // part. Requires: both the slices and the parts of all ranks partition the model.
  static absl::StatusOr<Regroup> Make(std::span<const Owned> owned, Interval part,
                                      Communicator& group);

  // Collectives. `owned`: as passed to Make; `part`: the values of the part.
  absl::Status ToPart(std::span<const Owned> owned, std::span<float> part);
  absl::Status FromPart(std::span<const float> part, std::span<const Owned> owned);

 private:
  explicit Regroup(Communicator& group) : group_(&group) {}
  absl::Status AllToAll();

  Communicator* group_;
  // Indices of Make's `owned` in parameter order.
  std::vector<size_t> order_;
  // By rank, in parameter order.
  std::vector<std::vector<Interval>> slices_;
  std::vector<Interval> parts_;
  // By rank; empty for this rank, which copies what its slices and its part share.
  std::vector<std::vector<float>> send_;
  std::vector<std::vector<float>> receive_;
};

}  // namespace cadre
