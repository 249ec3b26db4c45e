// The files that aggregators fetch from one another. Part of ShardStore.
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/shard_store.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<BlockFile>> ShardStore::OpenFile(
    const v1::CopyRequest& request) const {
  if (!IsFileName(request.run())) return absl::InvalidArgumentError("not a run id");
  CADRE_ASSIGN_OR_RETURN(const FoundRun found, LoadRunFile(request.run()));
  if (found.open.lineage() != request.lineage()) {
    return absl::NotFoundError(absl::StrCat("run ", request.run(), " has lineage ",
                                            found.open.lineage(), ", not ", request.lineage()));
  }
  return copies_.Open(request, request.shard() == found.open.shard() ? CopyFiles::Target::kShard
                                                                     : CopyFiles::Target::kCopy);
}

absl::StatusOr<StoredVersion> ShardStore::AddVersion(const std::string& run, uint32_t version) {
  const absl::Status frame = frames_.Load(run, version);
  if (!frame.ok() && !absl::IsNotFound(frame)) return frame;
  CADRE_ASSIGN_OR_RETURN(StoredVersion added, versions_.Check(run, version, /*verify=*/false));
  Archive(run, added.order, added.stats.digest);
  return added;
}

}  // namespace cadre
