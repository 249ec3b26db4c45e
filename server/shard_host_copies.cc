// The copying of versions between aggregators. Part of ShardHost.
//
// The aggregator that is to have a version fetches it: the copy of another shard, when the
// coordinator has recorded that the shard has made it, or the version of its own shard, when it has
// lost its files and another aggregator holds a copy (copies/copy_files.h). The files arrive under
// temporary names without any lock, while orders are carried out and ranks stage and pull. Then,
// with order_mutex_, what the order assumes is checked again and the files get their names.
#include "server/shard_host.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/shard_copies.h"
#include "server/run_terms.h"

namespace cadre {
namespace {

v1::MemberMessage Copied(const v1::CopyShard& order) {
  v1::MemberMessage message;
  message.mutable_shard_copied()->set_run(order.run());
  v1::ShardCopy& copy = *message.mutable_shard_copied()->mutable_copy();
  copy.set_shard(order.shard());
  copy.set_version(order.version());
  copy.set_digest(order.digest());
  return message;
}

v1::MemberMessage CopiedBack(const v1::CopyShard& order, const absl::Status& status) {
  v1::MemberMessage message;
  v1::Applied& applied = *message.mutable_applied();
  applied.set_run(order.run());
  applied.set_shard(order.shard());
  applied.set_round(order.version());
  if (status.ok()) applied.set_digest(order.digest());
  applied.set_error(std::string(status.message()));
  return message;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockFile>> ShardHost::OpenFile(
    const v1::CopyRequest& request) const {
  CADRE_RETURN_IF_ERROR(CheckProtocol(request.protocol()));
  return store_->OpenFile(request);
}

void ShardHost::AddCopies(const v1::OpenRun& open, v1::RunOpened& opened) const {
  if (!HasCopies(open.spec().averaging(), open.shards())) return;
  const uint32_t shard = CopiedShard(open.shard(), open.shards());
  for (const auto& [version, digest] : store_->copies().Find(open.run(), shard)) {
    v1::ShardCopy& copy = *opened.add_copies();
    copy.set_shard(shard);
    copy.set_version(version);
    copy.set_digest(digest);
  }
}

std::optional<v1::OpenRun> ShardHost::OpenRunOf(const v1::CopyShard& order) const {
  const auto found = opened_.find(order.run());
  const bool is_open = found != opened_.end() && !found->second.closed &&
                       found->second.open.lineage() == order.lineage();
  return is_open ? std::optional(found->second.open) : std::nullopt;
}

absl::StatusOr<std::optional<ShardHost::CopyTask>> ShardHost::BeginCopy(
    const v1::CopyShard& order) {
  absl::MutexLock turn(&order_mutex_);
  std::optional<v1::OpenRun> open = OpenRunOf(order);
  if (!open.has_value()) return std::nullopt;
  CopyTask task;
  if (order.shard() == open->shard()) {
    task.target = CopyFiles::Target::kShard;
    const v1::ShardState state = StateOf(order.run());
    task.stored = state.version() == order.version() && state.digest() == order.digest();
  } else if (HasCopies(open->spec().averaging(), open->shards()) &&
             order.shard() == CopiedShard(open->shard(), open->shards())) {
    const std::map<uint32_t, uint64_t> held = store_->copies().Find(order.run(), order.shard());
    const auto version = held.find(order.version());
    task.stored = version != held.end() && version->second == order.digest();
    if (!task.stored) CADRE_RETURN_IF_ERROR(CountError(store_->copies().Begin(order)));
  } else {
    return absl::InvalidArgumentError("this aggregator holds no copy of the shard");
  }
  open->set_shard(order.shard());
  CADRE_ASSIGN_OR_RETURN(const RunTerms terms, RunTermsOf(*open));
  task.span = Ledger::SpanOf(terms);
  return task;
}

absl::StatusOr<std::optional<v1::MemberMessage>> ShardHost::CopyShard(
    const v1::CopyShard& order, const CopyTransport& transport) {
  CADRE_ASSIGN_OR_RETURN(const std::optional<CopyTask> task, BeginCopy(order));
  if (!task.has_value()) return std::nullopt;
  const bool restores = task->target == CopyFiles::Target::kShard;
  if (!task->stored) {
    const auto fetched = store_->copies().Fetch(order, task->span, task->target, transport);
    // The coordinator restores the shard in another way.
    if (restores && IsLoss(fetched.status())) return CopiedBack(order, fetched.status());
    CADRE_RETURN_IF_ERROR(CountError(fetched.status()));
    absl::MutexLock turn(&order_mutex_);
    if (!OpenRunOf(order).has_value()) return std::nullopt;
    if (restores) {
      CADRE_RETURN_IF_ERROR(AdoptCopy(order, *fetched));
    } else {
      CADRE_RETURN_IF_ERROR(CountError(store_->copies().Publish(*fetched)));
      store_->copies().Add(order);
    }
    counters_->Add("versions_copied");
  }
  return restores ? CopiedBack(order, absl::OkStatus()) : Copied(order);
}

absl::Status ShardHost::AdoptCopy(const v1::CopyShard& order,
                                  const std::vector<std::string>& paths) {
  {
    absl::MutexLock lock(&mutex_);
    if (!ledger_.AwaitsVersion(order.run(), order.version())) {
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
