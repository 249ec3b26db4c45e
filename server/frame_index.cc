#include "server/frame_index.h"

#include <algorithm>

#include "base/status.h"
#include "model/frame.h"

namespace cadre {

absl::StatusOr<FrameIndex> FrameIndex::Scan(const BlockFile& file, const Codec& codec,
                                            const StretchRule& rule,
                                            std::span<const Interval> spans, Interval shard) {
  FrameIndex index;
  index.bytes_ = static_cast<int64_t>(file.head().data_bytes);
  FrameReader reader(codec, file.head().data_bytes, [&](uint64_t offset, std::span<char> bytes) {
    return file.ReadUnchecked(offset, bytes);
  });
  std::vector<float> values(kUnitSize);
  int64_t stretch = shard.begin;
  for (const Interval& span : spans) {
    for (const ExchangeUnit& unit : rule.units->In(span)) {
      const int64_t begin = unit.positions.begin;
      while (stretch < begin) stretch = StretchEnd(rule, shard, stretch);
      if (begin == stretch || begin == span.begin) {
        index.entries_.push_back({begin, static_cast<int64_t>(reader.done())});
      }
      CADRE_RETURN_IF_ERROR(reader.Next(unit, std::span(values).first(unit.positions.size())));
    }
  }
  CADRE_RETURN_IF_ERROR(reader.CheckEnd());
  return index;
}

Interval FrameIndex::BytesOf(Interval positions) const {
  const auto entry = std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& each) {
    return each.position < positions.begin;
  });
  const auto next = entry + 1;
  return {entry->offset, next == entries_.end() ? bytes_ : next->offset};
}

}  // namespace cadre
