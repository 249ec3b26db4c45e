// Computes the versions of a shard again: version 0 from the spec of the run and the checkpoint
// that it names, and every later one from its order and contributions, which the aggregator has
// archived (server/archive.h), by the code that made it (server/shard_store.h). Momentum and
// residuals of coded versions are computed as well, since they are functions of the same inputs.
// Equal digests show that the versions follow from what the groups have contributed and from
// nothing else.
//
// Thread-safe for different scratch folders.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/rooted_files.h"

namespace cadre {

struct ReplayedShard {
  std::string run;
  std::string lineage;
  uint32_t shard = 0;
  uint32_t shards = 1;
  // The newest version that was computed, its step and the digest of this shard's part of it.
  uint32_t version = 0;
  uint32_t step = 0;
  uint64_t digest = 0;
};

// `run_folder`: <data_dir>/<run> of an aggregator, which may be in use. `scratch`: an existing
// empty folder with room for three versions, those to which the run was rolled back, and their
// states. `on_version` is called with each
// version and the number of versions. Errors: NotFound without an archive; FailedPrecondition if an
// order or a contribution is missing; DataLoss if a file is damaged, or a version has another
// digest than the recorded one, with both; those of MakeInitialVersion.
absl::StatusOr<ReplayedShard> ReplayShard(
    const std::string& run_folder, const std::string& scratch,
    const std::function<void(uint32_t version, uint32_t versions)>& on_version,
    const RootedFiles& checkpoint_files = RootedFiles::Unrestricted());

}  // namespace cadre
