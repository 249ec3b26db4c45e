#include "worker/train/link_cache.h"

namespace cadre {

std::optional<v1::LinkProfile> LinkCache::Get(const std::vector<std::string>& peers,
                                              absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetOld(now);
  const auto it = entries_.find(peers);
  return it == entries_.end() ? std::nullopt : std::optional(it->second.link);
}

void LinkCache::Put(const std::vector<std::string>& peers, const v1::LinkProfile& link,
                    absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetOld(now);
  entries_[peers] = {link, now};
}

void LinkCache::ForgetOld(absl::Time now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = now - it->second.measured > kKept ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace cadre
