#include "model/kept_versions.h"

namespace cadre {

KeptVersions KeptVersionsOf(const v1::Averaging& averaging) {
  KeptVersions kept;
  const v1::KeepVersions& set = averaging.keep_versions();
  if (set.every() > 0) kept.every = set.every();
  if (set.has_count()) kept.count = set.count();
  return kept;
}

// Without a quorum, a round waits for the groups that load.
uint32_t MaxOlderVersions(const v1::Averaging& averaging) {
  return KeptVersionsOf(averaging).count + (averaging.quorum() > 0 ? kMaxLoadedVersions : 0);
}

}  // namespace cadre
