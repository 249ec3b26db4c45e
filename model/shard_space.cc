#include "model/shard_space.h"

#include <algorithm>
#include <iterator>

#include "model/averaging_state.h"
#include "model/coding.h"
#include "model/kept_versions.h"
#include "model/shard_copies.h"

namespace cadre {
namespace {

int64_t StatesOf(const v1::Averaging& averaging) { return std::ssize(ShardStateNames(averaging)); }
int64_t FramesOf(const v1::Averaging& averaging) { return CodingOf(averaging.down()) ? 1 : 0; }

}  // namespace

int64_t SpaceOfShard(const v1::RunSpec& spec, int64_t elements, int64_t copied) {
  const v1::Averaging& averaging = spec.averaging();
  const int64_t groups = std::max(1U, spec.cluster().groups());
  const int64_t states = StatesOf(averaging);
  const int64_t frames = FramesOf(averaging);
  const int64_t versions = 3 + int64_t{MaxOlderVersions(averaging)};
  const int64_t values = elements * (versions * (1 + states) + frames + groups);
  // The next version of a copy is fetched before the one that it replaces is removed.
  return values * int64_t{sizeof(float)} + 2 * SpaceOfCopy(averaging, copied);
}

int64_t SpaceOfCopy(const v1::Averaging& averaging, int64_t copied) {
  return copied * (1 + StatesOf(averaging) + FramesOf(averaging)) * int64_t{sizeof(float)};
}

int64_t SpaceOfLargestShard(const v1::RunSpec& spec, uint64_t parameters, uint32_t shards) {
  const auto elements = static_cast<int64_t>((parameters + shards - 1) / shards);
  return SpaceOfShard(spec, elements, HasCopies(spec.averaging(), shards) ? elements : 0);
}

int64_t SpaceOfEnded(const v1::RunSpec& spec, uint64_t parameters, uint32_t versions) {
  const int64_t states = StatesOf(spec.averaging());
  const int64_t frames = FramesOf(spec.averaging());
  const int64_t copies = spec.averaging().copies() > 1 ? 1 + states + frames : 0;
  const int64_t values = versions * (1 + states) + frames + copies;
  return static_cast<int64_t>(parameters) * values * int64_t{sizeof(float)};
}

}  // namespace cadre
