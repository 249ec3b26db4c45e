// What the ranks of one generation report about its end, and which ranks that incriminates.
//
// The first report ends the generation. For a short while its other ranks may still report: one
// report rarely shows which end of a broken connection is at fault.
//
// Pure and thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/standing.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

class FailureReports {
 public:
  struct Rank {
    std::string member_id;
    // Known also when the member is not registered any more.
    Standings::Worker worker;
  };
  // `place`: any rank of the generation; `ranks`: all of them.
  FailureReports(const v1::RankSlot& place, std::vector<Rank> ranks, absl::Time now);

  // Whether the member held this rank of the generation.
  bool Covers(const v1::RankSlot& place, const std::string& member_id) const;
  // Adds a report. Returns false for the second report of a rank.
  bool Add(const v1::GroupFailed& failed);

  // Until when reports are awaited; earlier, if all ranks have reported.
  absl::Time until() const;

  // The ranks that made the generation fail because others could not reach them. Empty if another
  // cause explains the failure, or if the reports do not agree.
  std::vector<uint32_t> Suspects() const;

  // All ranks that some report names. Empty if another cause explains the failure.
  std::vector<uint32_t> Named() const;

  const v1::RankSlot& place() const { return place_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // The first report that names the rank.
  std::string ReasonOf(uint32_t rank) const;

 private:
  v1::RankSlot place_;
  std::vector<Rank> ranks_;
  absl::Time until_;
  // By rank of the sender, in the order of arrival.
  std::map<uint32_t, v1::GroupFailed> reports_;
  std::vector<uint32_t> order_;
};

}  // namespace cadre
