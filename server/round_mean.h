// The mean of a round's contributions, read from their files block by block, and the discrepancy
// between the groups.
//
// Owns the open files. Thread-compatible. Uses memory for two blocks of values and one of doubles.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/block_file.h"
#include "server/ledger.h"
#include "server/mean.h"

namespace cadre {

class RoundMean {
 public:
  using Files = std::map<ContributionKey, std::unique_ptr<BlockFile>>;

  // `before` reads the previous version; null if it cannot be read. Requires: `files` has every
  // contribution of the plan, each verified; the plan outlives this object.
  RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before);

  // Computes the mean at the next out.size() positions. Requires: calls in order of positions.
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
  // Reads the previous version into before_; returns whether it is known.
  bool ReadBefore(int64_t first, size_t size);

  // Sets values that are not trained to 0, so that they add nothing to the discrepancy.
  void ClearStatistics(int64_t first, std::span<float> values) const;

  const Files files_;
  const std::vector<Interval> statistics_;
  std::vector<Group> groups_;
  // Null if the discrepancy is unknown.
  std::unique_ptr<VersionReader> reader_;
  std::vector<float> values_;
  std::vector<float> before_;
  DiscrepancySums sums_;
};

}  // namespace cadre
