// The mean of a round's contributions, read from their files piece by piece, and on the way how far
// the groups lie apart.
//
// Owns the open files. Thread-compatible. Memory: two pieces of values, and one of doubles.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/block_file.h"
#include "server/ledger.h"
#include "server/spread.h"
#include "server/version_reader.h"

namespace cadre {

class RoundMean {
 public:
  using Files = std::map<ContributionKey, std::unique_ptr<BlockFile>>;

  // `before` reads the version before; null: it cannot be read. Requires: `files` has every
  // contribution of the plan, each verified; the plan outlives this.
  RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before);

  // The mean at the next out.size() positions. Requires: calls come in flat order.
  absl::Status Next(uint64_t first, std::span<float> out);

  // Of the trained positions so far. Not known in rounds of one group, and where the version before
  // cannot be read: a statistic stops no round.
  Spread spread() const;

 private:
  // Where one group's values are read from next.
  struct Group {
    const GroupSource* source = nullptr;
    size_t segment = 0;
  };

  absl::Status Read(Group& group, uint64_t first, std::span<float> out) const;
  // Whether the version before is in before_.
  bool ReadBefore(uint64_t first, size_t size);

  // Values that are not trained count as if nobody had moved them.
  void ClearStatistics(uint64_t first, std::span<float> values) const;

  const Files files_;
  const std::vector<FlatSpan> statistics_;
  std::vector<Group> groups_;
  // Null: no spread.
  std::unique_ptr<VersionReader> reader_;
  std::vector<float> values_;
  std::vector<float> before_;
  SpreadSums sums_;
};

}  // namespace cadre
