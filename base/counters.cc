#include "base/counters.h"

namespace cadre {

void Counters::Add(absl::string_view name, uint64_t amount) {
  absl::MutexLock lock(&mutex_);
  auto it = values_.find(name);
  if (it == values_.end()) it = values_.emplace(std::string(name), 0).first;
  it->second += amount;
}

uint64_t Counters::Get(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto it = values_.find(name);
  return it == values_.end() ? 0 : it->second;
}

std::map<std::string, uint64_t> Counters::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  return {values_.begin(), values_.end()};
}

}  // namespace cadre
