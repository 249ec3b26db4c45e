#include "coordinator/run/shards.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "model/shard_copies.h"

namespace cadre {

void Shards::OnRestaged(const v1::Restaged& restaged) {
  ShardRestore* const restore = Lost(restaged.shard());
  const v1::RankSlot& place = restaged.place();
  if (restore == nullptr || !restore->ready() || restaged.round() != restore->attempt()->round() ||
      restaged.seed() != (restore->attempt()->source == ShardRestore::Source::kSeed) ||
      restore->asked.erase({place.group(), place.rank()}) == 0) {
    return;
  }
  if (restaged.error().empty()) return;
  restore->Fail(
      absl::StrCat("group ", place.group(), ", rank ", place.rank(), ": ", restaged.error()));
}

bool Shards::Accepts(uint32_t shard) const {
  if (IsOpen(shard)) return true;
  const ShardRestore* const lost = Lost(shard);
  return lost != nullptr && lost->ready() &&
         lost->attempt()->source == ShardRestore::Source::kOpenRound;
}

bool Shards::AllAccept() const {
  for (int shard = 0; shard < size(); ++shard) {
    if (!Accepts(shard)) return false;
  }
  return true;
}

bool Shards::MayClose() const {
  return std::all_of(lost_.begin(), lost_.end(),
                     [this](const auto& lost) { return Accepts(lost.first); });
}

std::string Shards::RestoreReason() const {
  for (const auto& [shard, restore] : lost_) {
    const std::string what = absl::StrCat(
        "shard ", shard, " on ", run_.shards(static_cast<int>(shard)), " is being restored");
    if (!restore.attempt().has_value()) return what;
    switch (restore.attempt()->source) {
      case ShardRestore::Source::kCopy:
        return absl::StrCat(what, " from the copy on ",
                            run_.shards(static_cast<int>(CopyHolder(shard, size()))));
      case ShardRestore::Source::kSeed:
        return absl::StrCat(what, " from group ", restore.attempt()->group);
      case ShardRestore::Source::kContributions:
        return absl::StrCat(what, " from the contributions to round ", restore.attempt()->round());
      case ShardRestore::Source::kOpenRound:
        return absl::StrCat(what, " from the round in progress");
    }
  }
  return "";
}

bool Shards::Lacks(const v1::Hello& hello) const {
  return std::any_of(opened_.begin(), opened_.end(), [&](const auto& entry) {
    return Owns(hello.name(), entry.first) &&
           std::none_of(
               hello.shards().begin(), hello.shards().end(),
               [&](const v1::ShardState& state) { return state.lineage() == run_.lineage(); });
  });
}

// A run whose record is an old copy may not have chosen its aggregators in it, and others since; a
// move in it may be complete since, or a shard that has left an aggregator may have moved there
// again.
bool Shards::MayStore(absl::string_view aggregator, uint32_t shard) const {
  const bool moves_there = run_.move().to() == aggregator && run_.move().shard() == shard;
  return run_.version() == 0 || Owns(aggregator, shard) || moves_there ||
         absl::c_linear_search(run_.leaving(), aggregator);
}

}  // namespace cadre
