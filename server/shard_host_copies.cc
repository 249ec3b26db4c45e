// What a host does for copies of shards (copies/copy_execution.h). Part of ShardHost.
#include <optional>

#include "base/status.h"
#include "server/shard_host.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<BlockFile>> ShardHost::OpenFile(
    const v1::CopyRequest& request) const {
  if (const auto wrong = WhyIncompatible(request.protocol())) return Refuse(*wrong);
  {
    absl::MutexLock lock(&mutex_);
    CADRE_RETURN_IF_ERROR(unverified_.Check(request.run()));
  }
  return store_->OpenFile(request);
}

absl::Status ShardHost::AdoptVersion(const v1::CopyShard& order,
                                     const std::vector<std::string>& paths) {
  const std::optional<KnownRuns::Run> known = Known(order.run());
  const bool is_own =
      known && known->open.lineage() == order.lineage() && known->open.shard() == order.shard();
  {
    absl::MutexLock lock(&mutex_);
    if (!is_own || !ledger_.AwaitsVersion(order.run(), order.version())) {
      return absl::UnavailableError("the shard does not await this version");
    }
  }
  CADRE_RETURN_IF_ERROR(CountError(store_->copies().Publish(paths)));
  CADRE_ASSIGN_OR_RETURN(const StoredVersion added,
                         store_->AddVersion(order.run(), order.version()));
  std::vector<ContributionKey> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped = ledger_.AddCopied(order.run(), added);
  }
  Remove(dropped);
  return absl::OkStatus();
}

}  // namespace cadre
