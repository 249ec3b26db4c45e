#include "worker/train/owned.h"

#include "glog/logging.h"

namespace cadre {

void AppendOwned(const BucketOwnership& bucket, std::span<float> slice, std::vector<Owned>* owned) {
  CHECK_EQ(std::ssize(slice), bucket.slice_end() - bucket.slice_begin());
  for (const OwnedInterval& part : bucket.owned) {
    owned->push_back(
        {part.flat, slice.subspan(part.offset - bucket.slice_begin(), part.flat.size())});
  }
}

std::vector<Owned> PartsIn(Interval range, std::span<const Owned> owned) {
  std::vector<Owned> parts;
  for (const Owned& whole : owned) {
    const Interval part = Intersect(whole.positions, range);
    if (part.empty()) continue;
    parts.push_back({part, whole.values.subspan(part.begin - whole.positions.begin, part.size())});
  }
  return parts;
}

}  // namespace cadre
