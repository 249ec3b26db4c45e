// Before version 1 the cause is usually a mistake in the run, and is reported quickly. Later, other
// workers have done the same successfully, so more hosts have to agree.
#include "coordinator/run/run_failures.h"

#include <algorithm>

namespace cadre {
namespace {

constexpr size_t kHostsAtStart = 2;
constexpr size_t kHostsLater = 3;
// Reports of a single host, on which no other worker can disprove the cause.
constexpr uint32_t kReportsLater = 3;
// Generations that diverge from the same version, the second of which repeats the steps of the
// first, on other hosts, or trains on other samples.
constexpr size_t kDivergedGenerations = 2;
// The same, while all of them had a rank on one host, which may be faulty.
constexpr size_t kDivergedOnOneHost = 4;

}  // namespace

bool RunFailures::Add(v1::FailureCause cause, const std::string& host, uint32_t version,
                      size_t hosts) {
  Reports& reports = reports_[cause];
  ++reports.count;
  reports.hosts.insert(host);
  if (hosts <= 1) return version == 0 || reports.count >= kReportsLater;
  return reports.hosts.size() >= std::min(hosts, version == 0 ? kHostsAtStart : kHostsLater);
}

bool RunFailures::AddDivergence(uint32_t generation, const std::set<std::string>& members,
                                uint32_t groups, size_t hosts) {
  if (diverged_.empty()) diverged_on_ = members;
  diverged_.insert(generation);
  std::erase_if(diverged_on_, [&](const std::string& host) { return !members.contains(host); });
  const bool suspicious = !diverged_on_.empty() && diverged_on_.size() < hosts;
  const size_t needed = suspicious ? kDivergedOnOneHost : kDivergedGenerations;
  return groups == 1 || diverged_.size() >= needed;
}

void RunFailures::OnCommit() {
  reports_.clear();
  diverged_.clear();
}

}  // namespace cadre
