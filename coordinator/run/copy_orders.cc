// When all shards have applied the closing round, the aggregators that hold the copies are ordered
// to fetch the version from the shards, and the commit waits for them:
//
// clang-format off
//   CopyShard   -> holder         fetches the files of the version; answered by ShardCopied
// clang-format on
//
// So each shard of a committed version is on two disks, with its states. If the aggregator of a
// shard is away meanwhile, the commit waits for it, as it does for a shard that has not applied the
// round: it may return without the version. If the holder of a copy is away, or does not answer in
// time, the run goes on, and the copy is behind until the holder has fetched a later version. A
// holder that was too late is not awaited again until it has answered.
//
// A shard that has lost its version fetches it from the copy (aggregators_restore.cc).
#include "coordinator/run/copy_orders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/run/run_rules.h"
#include "coordinator/run/run_view.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// A commit waits for a copy for at most this time.
constexpr absl::Duration kMaxCopyTime = absl::Minutes(2);

}  // namespace

std::optional<ShardCopies::Version> CopyOrders::VersionToCopy(uint32_t shard) const {
  const bool closing = run_.committing() && run_.commits().applied();
  if (run_.committing() && !closing) return std::nullopt;
  const std::optional<v1::CommitRecord>& commit =
      closing ? run_.commits().closing() : run_.commits().newest();
  // Version 0 can be made again.
  if (!commit.has_value() || commit->round() == 0) return std::nullopt;
  const std::optional<uint64_t> digest = DigestOf(*commit, shard);
  if (!digest.has_value()) return std::nullopt;
  return ShardCopies::Version{commit->round(), *digest};
}

void CopyOrders::Send() {
  if (!copies_.enabled()) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::optional<ShardCopies::Version> version = VersionToCopy(shard);
    if (!version.has_value()) return;
    if (std::exchange(version_, version->version) != version->version) since_.clear();
    since_.try_emplace(shard, cluster_.now());
    if (!run_.shards().IsOpen(shard) || !copies_.MustOrder(shard, *version)) continue;
    // Also after a restart of the coordinator, the digest shows whether a copy can replace the
    // version.
    if (run_.committing()) {
      cluster_.out().Put(CommitKey(run_.id(), version->version), *run_.commits().closing());
    }
    Order(copies_.HolderOf(shard), record_.shards(shard), shard, *version);
    copies_.SetOrdered(shard, *version);
  }
}

void CopyOrders::SendBack(uint32_t shard) const {
  const std::optional<ShardCopies::Version> version = VersionFor(shard);
  if (!version.has_value()) return;
  Order(record_.shards(static_cast<int>(shard)), copies_.HolderOf(shard), shard, *version);
}

bool CopyOrders::Order(const std::string& target, const std::string& source, uint32_t shard,
                       const ShardCopies::Version& version) const {
  const Member* const from = cluster_.members().Aggregator(source);
  const Member* const to = cluster_.members().Aggregator(target);
  if (from == nullptr || to == nullptr) return false;
  v1::CoordinatorMessage message;
  v1::CopyShard& copy = *message.mutable_copy_shard();
  copy.set_run(run_.id());
  copy.set_lineage(record_.lineage());
  copy.set_shard(shard);
  copy.set_version(version.version);
  copy.set_digest(version.digest);
  copy.set_aggregator(source);
  copy.set_address(from->record.address());
  cluster_.SendTo(to->id(), message);
  return true;
}

absl::Time CopyOrders::AwaitedUntil() const {
  absl::Time until = absl::InfinitePast();
  if (!copies_.enabled() || !run_.committing()) return until;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::optional<ShardCopies::Version> version = VersionToCopy(shard);
    if (!version.has_value() || copies_.Has(shard, *version)) continue;
    if (!run_.shards().IsOpen(shard)) return absl::InfiniteFuture();
    if (!copies_.Awaits(shard, *version)) continue;
    const auto since = since_.find(shard);
    until =
        std::max(until, (since == since_.end() ? cluster_.now() : since->second) + kMaxCopyTime);
  }
  return until;
}

std::map<uint32_t, ShardCopies::Version> CopyOrders::Awaited() const {
  std::map<uint32_t, ShardCopies::Version> awaited;
  if (AwaitedUntil() <= cluster_.now()) return awaited;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::optional<ShardCopies::Version> version = VersionToCopy(shard);
    if (version.has_value() && copies_.Awaits(shard, *version)) awaited[shard] = *version;
  }
  return awaited;
}

std::string CopyOrders::WaitReason() const {
  const std::map<uint32_t, ShardCopies::Version> awaited = Awaited();
  if (awaited.empty()) return "";
  const auto& [shard, version] = *awaited.begin();
  return absl::StrCat("version ", version.version, " waits for the copy of shard ", shard,
                      " on aggregator ", copies_.HolderOf(shard));
}

void CopyOrders::OnShardOpen(uint32_t shard) {
  copies_.ForgetOrder(shard);
  since_[shard] = cluster_.now();
}

void CopyOrders::OnCopied(const Member& member, const v1::ShardCopy& copied) {
  if (!copies_.OnCopied(member.record.name(), copied)) {
    return cluster_.CountRefusal(v1::REFUSAL_MALFORMED);
  }
  cluster_.Count("shards_copied");
  Report();
}

void CopyOrders::Report() {
  if (!copies_.enabled() || run_.committing()) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    const std::optional<ShardCopies::Version> version = VersionToCopy(shard);
    if (!version.has_value()) continue;
    const bool is_behind = !copies_.Has(shard, *version);
    if (is_behind) copies_.GiveUp(shard);
    if (is_behind == behind_.contains(shard)) continue;
    const std::string which =
        absl::StrCat("the copy of shard ", shard, " on aggregator ", copies_.HolderOf(shard));
    if (is_behind) {
      behind_.insert(shard);
      cluster_.ReportRun(v1::EVENT_KIND_SHARD_COPY, run_.id(),
                         absl::StrCat(which, " is behind since version ", version->version,
                                      ": the aggregator is away or slow, and the run goes on"));
    } else {
      behind_.erase(shard);
      cluster_.ReportRun(
          v1::EVENT_KIND_SHARD_COPY, run_.id(),
          absl::StrCat(which, " has the newest version again, version ", version->version));
    }
  }
}

std::optional<ShardCopies::Version> CopyOrders::VersionFor(uint32_t shard) const {
  if (run_.committing()) {
    const v1::CommitRecord& closing = *run_.commits().closing();
    const v1::ShardDigest& applied = closing.digests(static_cast<int>(shard));
    const ShardCopies::Version version{closing.round(), applied.digest()};
    if (applied.applied() && copies_.Has(shard, version)) return version;
  }
  const std::optional<uint64_t> digest = run_.commits().ShardDigest(shard);
  if (!digest.has_value() || record_.version() == 0) return std::nullopt;
  const ShardCopies::Version version{record_.version(), *digest};
  return copies_.Has(shard, version) ? std::optional(version) : std::nullopt;
}

void CopyOrders::FillStatus(v1::RunStatus& status) const {
  if (!copies_.enabled()) return;
  for (int shard = 0; shard < record_.shards_size(); ++shard) {
    v1::ShardCopyStatus& copy = *status.add_copies();
    copy.set_shard(shard);
    copy.set_aggregator(copies_.HolderOf(shard));
    if (const auto version = copies_.NewestOf(shard)) copy.set_version(*version);
  }
}

}  // namespace cadre
