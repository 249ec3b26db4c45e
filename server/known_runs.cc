#include "server/known_runs.h"

#include <algorithm>

#include "server/run_terms.h"

namespace cadre {

std::optional<KnownRuns::Run> KnownRuns::Find(const std::string& run) const {
  const auto found = runs_.find(run);
  return found == runs_.end() ? std::nullopt : std::optional(found->second);
}

void KnownRuns::Set(const v1::OpenRun& open, bool closed) {
  runs_[open.run()] = {open, closed, SpaceOf(open).value_or(0), CopySpaceOf(open).value_or(0)};
  Release(open.run());
}

int64_t KnownRuns::Reserved() const {
  int64_t reserved = 0;
  for (const auto& [run, known] : runs_) {
    if (!known.closed) reserved += std::max<int64_t>(0, known.space - stored_(run, known));
  }
  for (const auto& [run, space] : opening_) reserved += space;
  return reserved;
}

std::optional<int64_t> KnownRuns::Reserve(const std::string& run, int64_t needed, int64_t free) {
  const int64_t reserved = Reserved();
  if (needed > free - reserved) return reserved;
  opening_[run] = needed;
  return std::nullopt;
}

}  // namespace cadre
