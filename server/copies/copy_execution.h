// Carries out the coordinator's order to copy a version of a shard from another aggregator.
//
// The aggregator that is to have a version fetches it: as a copy of another shard, when that shard
// has made it, or as the version of its own shard, which has lost its files. The files arrive under
// temporary names without any lock, while other orders are carried out and ranks stage and pull. At
// the end, what the order assumes is checked again, and the files get their names.
#pragma once

#include "proto/cadre/v1/membership.pb.h"
#include "server/copies/copy_files.h"
#include "server/order_execution.h"
#include "server/shard_host.h"

namespace cadre {

// As ExecuteOrder, but waits for the other aggregator as well. Must not be called by two threads
// for one run.
OrderResult ExecuteCopy(ShardHost& host, const v1::CopyShard& order,
                        const CopyTransport& transport);

// A file that another aggregator requests cannot be read. A damaged version of the host's own shard
// is treated like one that its own rounds find damaged: the shard is restored before its copy is
// older than the run.
absl::Status OnRequestedFileError(ShardHost& host, const v1::CopyRequest& request,
                                  const absl::Status& error);

}  // namespace cadre
