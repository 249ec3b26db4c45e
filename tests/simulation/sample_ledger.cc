#include "tests/simulation/sample_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "model/data_position.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {

void SampleLedger::OnStage(const v1::RankSlot& place, uint32_t round,
                           std::vector<int64_t> positions) {
  staged_[{place.run(), round, place.group(), place.generation()}] = std::move(positions);
}

void SampleLedger::OnCommit(const v1::CommitRecord& commit, int64_t batch) {
  std::map<uint32_t, std::vector<int64_t>>& versions = used_[commit.run()];
  const uint32_t base = commit.has_restores() ? commit.restores() : commit.round() - 1;
  std::vector<int64_t> used = versions[base];
  for (const v1::Participant& in : commit.participants()) {
    const auto staged = staged_.find({commit.run(), commit.round(), in.group(), in.generation()});
    if (staged == staged_.end()) continue;
    used.insert(used.end(), staged->second.begin(), staged->second.end());
    world_.Count("batches_checked", static_cast<int64_t>(staged->second.size()));
  }
  absl::c_sort(used);
  const auto twice = absl::c_adjacent_find(
      used, [batch](int64_t before, int64_t after) { return after < before + batch; });
  if (twice != used.end()) {
    world_.Violate(Describe(commit), " uses the sample at position ", *(twice + 1), " twice");
  }
  versions[commit.round()] = std::move(used);
}

void TrainedBatches::OnStep(const v1::SampleDivision& division, uint32_t step) {
  Settle(step);
  positions_.push_back(
      BatchPosition(division, step, assignment_.place().group(), BatchOf(assignment_.spec())));
}

void TrainedBatches::OnStage(uint32_t round, uint32_t step) {
  Settle(step);
  ledger_.OnStage(assignment_.place(), round, std::exchange(positions_, {}));
}

void TrainedBatches::Settle(uint32_t step) {
  if (!adopted_.has_value()) return;
  const size_t kept = step - std::exchange(adopted_, std::nullopt).value();
  if (positions_.size() > kept) positions_.resize(kept);
}

}  // namespace cadre::simulation
