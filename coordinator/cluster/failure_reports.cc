// The rules, for a group of n ranks whose reports all have the cause PEER:
//
//   1. The ranks that most reports name are candidates. Candidates that have reported themselves
//      are acquitted if another candidate was silent: a rank that hangs does not report.
//   2. If no report names a rank, and at least three ranks have reported, the only silent rank is
//      the candidate. Fewer are no evidence: the first report releases the ranks that have not
//      noticed the failure yet.
//   3. The candidates are suspects if they are at most half of the group. If they are more, the
//      reporting ranks may as well be the ones that are cut off. Then other workers are preferred
//      to all that are named, so that the next group has other members.
//
// A report with a cause of its own (a lost device, missing data) explains the failure: the reports
// of its peers are the consequence.
#include "coordinator/cluster/failure_reports.h"

#include <algorithm>

namespace cadre {
namespace {

// Peers report within milliseconds of each other, unless a time-out decides.
constexpr absl::Duration kWindow = absl::Seconds(2);
constexpr size_t kMinSilentWitnesses = 3;

}  // namespace

FailureReports::FailureReports(const v1::RankSlot& place, std::vector<Rank> ranks, absl::Time now)
    : place_(place), ranks_(std::move(ranks)), until_(now + kWindow) {}

bool FailureReports::Covers(const v1::RankSlot& place, const std::string& member_id) const {
  return place.run() == place_.run() && place.group() == place_.group() &&
         place.generation() == place_.generation() && place.rank() < ranks_.size() &&
         ranks_.at(place.rank()).member_id == member_id;
}

bool FailureReports::Add(const v1::GroupFailed& failed) {
  if (!reports_.try_emplace(failed.place().rank(), failed).second) return false;
  order_.push_back(failed.place().rank());
  return true;
}

absl::Time FailureReports::until() const {
  return reports_.size() == ranks_.size() ? absl::InfinitePast() : until_;
}

std::vector<uint32_t> FailureReports::Suspects() const {
  std::map<uint32_t, size_t> votes;
  for (const auto& [sender, report] : reports_) {
    if (report.cause() != v1::FAILURE_CAUSE_PEER) return {};
    const std::set<uint32_t> named(report.suspects().begin(), report.suspects().end());
    for (const uint32_t rank : named) {
      if (rank != sender && rank < ranks_.size()) ++votes[rank];
    }
  }
  const auto silent = [this](uint32_t rank) { return reports_.count(rank) == 0; };
  std::vector<uint32_t> candidates;
  if (votes.empty()) {
    if (reports_.size() < kMinSilentWitnesses) return {};
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (silent(rank)) candidates.push_back(rank);
    }
    return candidates.size() == 1 ? candidates : std::vector<uint32_t>();
  }
  const size_t most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->second;
  for (const auto& [rank, count] : votes) {
    if (count == most) candidates.push_back(rank);
  }
  if (std::any_of(candidates.begin(), candidates.end(), silent)) {
    std::erase_if(candidates, [&](uint32_t rank) { return !silent(rank); });
  }
  return 2 * candidates.size() <= ranks_.size() ? candidates : std::vector<uint32_t>();
}

std::vector<uint32_t> FailureReports::Named() const {
  std::set<uint32_t> named;
  for (const auto& [sender, report] : reports_) {
    if (report.cause() != v1::FAILURE_CAUSE_PEER) return {};
    for (const uint32_t rank : report.suspects()) {
      if (rank < ranks_.size()) named.insert(rank);
    }
  }
  return {named.begin(), named.end()};
}

std::string FailureReports::ReasonOf(uint32_t rank) const {
  for (const uint32_t sender : order_) {
    const v1::GroupFailed& report = reports_.at(sender);
    const auto& suspects = report.suspects();
    if (std::find(suspects.begin(), suspects.end(), rank) != suspects.end()) return report.reason();
  }
  return order_.empty() ? "" : reports_.at(order_.front()).reason();
}

}  // namespace cadre
