// The archive of a run on one aggregator (cadre-aggregator --archive): for each version, the order
// that made it, its digest, and the contributions of its participants. With version 0, which is a
// function of the run's spec, this is all that determines the versions, so they can be computed
// again (server/replay.h).
//
//   <run's folder>/order-<v>             the digest of this shard's part of version v, and the
//   Apply <run's folder>/archived-stage-...    the contributions, under their names (shard_store.h)
//
// An order is written when its contributions are in the archive. The archive grows with every round
// and is removed with the run.
//
// Thread-safe, but two threads must not archive the same round.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

struct ArchivedRound {
  v1::Apply order;
  uint64_t digest = 0;
  // Paths of the contributions.
  std::vector<std::string> contributions;
};

// Renames the contributions of the version that `order` made, then writes the order. No effect if
// the order is there.
absl::Status ArchiveRound(FileSystem& files, const std::string& run_folder, const v1::Apply& order,
                          uint64_t digest);

// All rounds. Errors: DataLoss for a damaged order.
absl::StatusOr<std::map<uint32_t, ArchivedRound>> ReadArchive(FileSystem& files,
                                                              const std::string& run_folder);

}  // namespace cadre
