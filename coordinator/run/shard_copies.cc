#include "coordinator/run/shard_copies.h"

namespace cadre {

bool ShardCopies::Has(uint32_t shard, const Version& version) const {
  const auto copy = copies_.find(shard);
  if (copy == copies_.end()) return false;
  const auto held = copy->second.versions.find(version.version);
  return held != copy->second.versions.end() && held->second == version.digest;
}

std::optional<uint32_t> ShardCopies::NewestOf(uint32_t shard) const {
  const auto copy = copies_.find(shard);
  if (copy == copies_.end() || copy->second.versions.empty()) return std::nullopt;
  return copy->second.versions.rbegin()->first;
}

// The answer may be older than the end of an order, which is then sent again.
void ShardCopies::OnOpened(const v1::RunOpened& opened) {
  if (!enabled()) return;
  const uint32_t shard = CopiedShard(opened.shard(), run_.shards_size());
  Copy& copy = copies_[shard] = Copy();
  for (const v1::ShardCopy& held : opened.copies()) {
    if (held.shard() == shard) copy.versions[held.version()] = held.digest();
  }
}

bool ShardCopies::OnCopied(absl::string_view holder, const v1::ShardCopy& copied) {
  const bool holds = enabled() && int64_t{copied.shard()} < run_.shards_size() &&
                     HolderOf(copied.shard()) == holder;
  if (!holds) return false;
  const auto found = copies_.find(copied.shard());
  if (found == copies_.end()) return true;
  Copy& copy = found->second;
  copy.late = false;
  copy.versions[copied.version()] = copied.digest();
  // Its holder keeps the newest two.
  while (copy.versions.size() > 2) copy.versions.erase(copy.versions.begin());
  return true;
}

void ShardCopies::Close(absl::string_view name) {
  if (!enabled()) return;
  for (int shard = 0; shard < run_.shards_size(); ++shard) {
    if (run_.shards(shard) == name) ForgetOrder(shard);
    if (HolderOf(shard) == name) copies_.erase(shard);
  }
}

bool ShardCopies::MustOrder(uint32_t shard, const Version& version) const {
  const auto copy = copies_.find(shard);
  return copy != copies_.end() && copy->second.ordered != version && !Has(shard, version);
}

void ShardCopies::SetOrdered(uint32_t shard, const Version& version) {
  copies_[shard].ordered = version;
}

void ShardCopies::ForgetOrder(uint32_t shard) {
  const auto copy = copies_.find(shard);
  if (copy != copies_.end()) copy->second.ordered.reset();
}

bool ShardCopies::Awaits(uint32_t shard, const Version& version) const {
  const auto copy = copies_.find(shard);
  const bool is_late = copy != copies_.end() && copy->second.late;
  return !is_late && !Has(shard, version);
}

void ShardCopies::GiveUp(uint32_t shard) {
  const auto copy = copies_.find(shard);
  if (copy != copies_.end()) copy->second.late = true;
}

}  // namespace cadre
