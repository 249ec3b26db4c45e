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

// Errors: InvalidArgument if the model is invalid, or a name is not a valid file name.
absl::StatusOr<RunTerms> RunTermsOf(const v1::OpenRun& open);

// Returns a function that produces the initial model of the spec, from its seed or from a
// checkpoint, whose file stays open as long as the function exists. Requires: RunTermsOf accepted
// the spec. Errors: those of OpenWeights and of `files`.
absl::StatusOr<ShardStore::Fill> InitialModel(const v1::RunSpec& spec, const RootedFiles& files);

}  // namespace cadre
