// The values of a round's version: the mean of its contributions, read from their files block by
// block, or what the outer optimizer makes of it; and the discrepancy between the groups.
//
// Owns the open files. Thread-compatible. Uses memory for two blocks of values, one of doubles, and
// the blocks of the outer optimizer's states.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/block_file.h"
#include "server/ledger.h"
#include "server/mean.h"
#include "server/outer_update.h"

namespace cadre {

// The outer update of a round. The states of each block of values are one block of a file, one
// state after the other.
struct OuterRound {
  OuterUpdate update;
  // The states after the previous round; null: zeros.
  std::unique_ptr<BlockFile> before;
  std::unique_ptr<BlockFile> after;
  std::vector<float> states = {};
  uint64_t block = 0;
};

class RoundMean {
 public:
  using Files = std::map<ContributionKey, std::unique_ptr<BlockFile>>;

  // `before` reads the previous version; null if it cannot be read. `outer`: null if the mean is
  // the version. Requires: `files` has every contribution of the plan, each verified; with `outer`,
  // `before` is not null; plan and `outer` outlive this object.
  RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before,
            OuterRound* outer = nullptr);

  // Computes the version at the next out.size() positions. Requires: calls in order of positions,
  // with the blocks of the outer states. Errors: those of the files.
  absl::Status Next(int64_t first, std::span<float> out);

  // Discrepancy of the trained positions so far. It is unknown in rounds of one group and if the
  // previous version cannot be read: a missing statistic does not fail the round.
  DiscrepancyTerms discrepancy() const;

 private:
  // Next position to read of one group.
  struct Group {
    const GroupSource* source = nullptr;
    size_t segment = 0;
  };

  absl::Status Read(Group& group, int64_t first, std::span<float> out) const;
  // Reads the previous version into before_; returns whether it is known. Errors: only with an
  // outer update, which requires it.
  absl::StatusOr<bool> ReadBefore(int64_t first, size_t size);
  absl::Status UpdateOuter(int64_t first, std::span<float> values);

  // Calls `use` with the intervals of values, from `first` on, that are not trained, as offsets.
  template <typename Use>
  void ForEachStatistic(Interval positions, const Use& use) const;
  // Sets values that are not trained to 0, so that they add nothing to the discrepancy.
  void ClearStatistics(int64_t first, std::span<float> values) const;

  const Files files_;
  const std::vector<Interval> statistics_;
  std::vector<Group> groups_;
  // Null if the previous version is neither needed nor known.
  std::unique_ptr<VersionReader> reader_;
  OuterRound* const outer_;
  std::vector<float> values_;
  std::vector<float> before_;
  DiscrepancySums sums_;
};

}  // namespace cadre
