// From the words of OpenRun to what the ledger and the store need.
//
// Thread-safe (pure functions).
#pragma once

#include "absl/status/statusor.h"
#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/ledger.h"
#include "server/shard_store.h"

namespace cadre {

// Errors: InvalidArgument when the model has no parameter index, or a name cannot name a file.
absl::StatusOr<RunTerms> TermsOf(const v1::OpenRun& open);

// The model that the spec begins with: the seed's, or a checkpoint's, whose file stays open with
// the result. Requires: TermsOf accepted the spec. Errors: those of OpenWeights.
absl::StatusOr<ShardStore::Fill> InitialModel(const v1::RunSpec& spec);

}  // namespace cadre
