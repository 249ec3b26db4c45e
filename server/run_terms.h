// Converts the coordinator's OpenRun message into the inputs of the ledger and the store.
//
// Thread-safe (pure functions).
#pragma once

#include "absl/status/statusor.h"
#include "base/rooted_files.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/ledger.h"
#include "server/shard_store.h"

namespace cadre {

// SpaceOfShard (model/shard_space.h) of this aggregator's shard of the run. Takes no memory in
// proportion to the model. Errors: InvalidArgument if the model is invalid.
absl::StatusOr<int64_t> SpaceOf(const v1::OpenRun& open);
// The part of it for each version of the copy of another shard; 0: this aggregator holds none.
absl::StatusOr<int64_t> CopySpaceOf(const v1::OpenRun& open);

// Errors: InvalidArgument if the model is invalid, or a name is not a valid file name.
absl::StatusOr<RunTerms> RunTermsOf(const v1::OpenRun& open);

// Returns functions that produce version 0 of the run, from its seed or from a checkpoint, whose
// files stay open as long as the functions exist. Of the states that the shards store with
// versions, it has those that the checkpoint contains. Requires: RunTermsOf accepted the spec.
// Errors: those of OpenWeights, ReadManifest, OpenTensors and `files`.
absl::StatusOr<ShardStore::InitialVersion> MakeInitialVersion(const v1::RunSpec& spec,
                                                              const RootedFiles& files);

}  // namespace cadre
