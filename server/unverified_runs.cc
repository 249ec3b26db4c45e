#include "server/unverified_runs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {

std::string UnverifiedRuns::Progress::Text() const {
  return absl::StrCat(read, " of ", bytes, " bytes of its files are verified");
}

void UnverifiedRuns::Add(const RunTerms& terms, const std::vector<StoredVersion>& versions,
                         uint64_t bytes) {
  heads_.Restore(terms, /*closed=*/false, versions, {});
  runs_[terms.run] = {.bytes = bytes};
}

void UnverifiedRuns::Erase(const std::string& run) {
  heads_.Forget(run);
  runs_.erase(run);
}

void UnverifiedRuns::OnRead(const std::string& run, uint64_t bytes) {
  const auto found = runs_.find(run);
  if (found == runs_.end()) return;
  Progress& progress = found->second;
  // Files may have changed since they were counted.
  progress.read = std::min(progress.bytes, progress.read + bytes);
}

void UnverifiedRuns::BeginAgain(const std::string& run) {
  if (const auto found = runs_.find(run); found != runs_.end()) found->second.read = 0;
}

absl::Status UnverifiedRuns::Check(const std::string& run) const {
  const auto found = runs_.find(run);
  if (found == runs_.end()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the aggregator has started, and ", found->second.Text()));
}

}  // namespace cadre
