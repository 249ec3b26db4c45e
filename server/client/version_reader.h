// Reads the newest version of a run for a user, from the aggregators that store its shards.
//
// Thread-safe (pure function).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/rpc/credentials.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/control.pb.h"

namespace cadre {

struct ReadVersion {
  // Its id.
  std::string run;
  v1::LocateReply located;
  ParameterIndex index;
  // In the parameter order.
  std::vector<float> values;
};

// `locate` asks the coordinator (CoordinatorClient::Locate); it is called again when the run has
// replaced the version before it was read. `run`: what it asks for, an id or a name. Blocks until
// all values have arrived.
//
// Errors: those of `locate`; Unavailable if an aggregator is away; with the name of the aggregator,
// those of RoundsClient, such as NotFound if it has removed the run's files; DataLoss if the values
// do not have the digest of the version.
absl::StatusOr<ReadVersion> ReadNewestVersion(
    const std::string& run, const std::function<absl::StatusOr<v1::LocateReply>()>& locate,
    const Credentials& credentials);

}  // namespace cadre
