// Gathers scattered intervals in order, with bounded memory.
//
// A rank owns intervals all over the parameter order: one slice of every bucket. A checkpoint needs
// the values in that order. So the ranks exchange the lists of their intervals once, with adjacent
// intervals merged. From then on every rank can compute which part of a chunk each rank
// contributes, and messages contain only values.
//
// For each chunk the ranks pack their parts contiguously, all-gather them, and rank 0 unpacks them
// into place. An all-gather moves each value once around the ring. That loads every link as much as
// rank 0's own link, which has to receive everything in any case, so it takes no longer than a
// gather would. The exchange of intervals also verifies that every position has exactly one owner.
//
// Cost: O(intervals) to share; per chunk, one all-gather and one pass over the parts. Memory: two
// chunks on rank 0, one on the others.
#include "worker/train/flat_gather.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "member/agreement.h"

namespace cadre {
namespace {

// Calls `use(part, i)` with the part of each interval i that lies in the chunk, in order.
template <typename Use>
void ForEachPart(const std::vector<Interval>& intervals, Interval chunk, const Use& use) {
  auto it = std::partition_point(intervals.begin(), intervals.end(),
                                 [&](const Interval& each) { return each.end <= chunk.begin; });
  for (; it != intervals.end() && it->begin < chunk.end; ++it) {
    use(Intersect(*it, chunk), it - intervals.begin());
  }
}

}  // namespace

absl::StatusOr<FlatGather> FlatGather::Make(int64_t size, std::span<const Owned> mine,
                                            Communicator& group) {
  FlatGather gather(mine, group);
  CADRE_RETURN_IF_ERROR(gather.ShareIntervals());
  CADRE_RETURN_IF_ERROR(gather.CheckCover(size));
  return gather;
}

FlatGather::FlatGather(std::span<const Owned> mine, Communicator& group)
    : group_(&group), all_(group.size()) {
  for (size_t i = 0; i < mine.size(); ++i) {
    CHECK_EQ(mine[i].positions.size(), std::ssize(mine[i].values));
    if (!mine[i].positions.empty()) order_.push_back(i);
  }
  std::sort(order_.begin(), order_.end(),
            [&](size_t a, size_t b) { return mine[a].positions.begin < mine[b].positions.begin; });
  for (const size_t i : order_) mine_.push_back(mine[i].positions);
}

absl::Status FlatGather::ShareIntervals() {
  std::vector<Interval> merged;
  for (const Interval& interval : mine_) {
    if (!merged.empty() && merged.back().end == interval.begin) {
      merged.back().end = interval.end;
    } else {
      merged.push_back(interval);
    }
  }
  const std::string bytes(reinterpret_cast<const char*>(merged.data()),
                          merged.size() * sizeof(Interval));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(bytes, *group_));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;  // memcpy requires a destination even for 0 bytes
    all_[rank].resize(all[rank].size() / sizeof(Interval));
    std::memcpy(all_[rank].data(), all[rank].data(), all[rank].size());
  }
  return absl::OkStatus();
}

absl::Status FlatGather::CheckCover(int64_t size) const {
  std::vector<Interval> ranges;
  for (const auto& of_rank : all_) ranges.insert(ranges.end(), of_rank.begin(), of_rank.end());
  std::sort(ranges.begin(), ranges.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const Interval& range : ranges) {
    if (range.begin != next) break;
    next = range.end;
  }
  if (next == size) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the ranks do not own each of the ", size,
                                          " elements once: position ", next,
                                          " is owned by no rank or by several"));
}

int64_t FlatGather::ElementsOf(int rank, Interval chunk) const {
  int64_t elements = 0;
  ForEachPart(all_[rank], chunk, [&](Interval part, size_t) { elements += part.size(); });
  return elements;
}

absl::Status FlatGather::Gather(Interval chunk, std::span<const Owned> owned,
                                std::span<float> whole) {
  std::vector<int64_t> offsets = {0};
  for (int rank = 0; rank < group_->size(); ++rank) {
    offsets.push_back(offsets.back() + ElementsOf(rank, chunk));
  }
  CHECK_EQ(offsets.back(), chunk.size());
  if (std::ssize(packed_) < chunk.size()) packed_.resize(chunk.size());
  const std::span<float> packed = std::span(packed_).first(chunk.size());
  Pack(chunk, owned, packed.subspan(offsets[group_->index()]));
  CADRE_RETURN_IF_ERROR(group_->AllGather(packed, offsets));
  if (group_->index() == 0) Unpack(chunk, packed, whole);
  return absl::OkStatus();
}

void FlatGather::Pack(Interval chunk, std::span<const Owned> owned, std::span<float> packed) const {
  auto out = packed.begin();
  ForEachPart(mine_, chunk, [&](Interval part, size_t i) {
    const Owned& from = owned[order_[i]];
    CHECK(from.positions == mine_[i]) << "not the positions of Make";
    out = std::copy_n(from.values.begin() + (part.begin - from.positions.begin), part.size(), out);
  });
}

void FlatGather::Unpack(Interval chunk, std::span<const float> packed,
                        std::span<float> whole) const {
  auto in = packed.begin();
  for (const auto& of_rank : all_) {
    ForEachPart(of_rank, chunk, [&](Interval part, size_t) {
      std::copy_n(in, part.size(), whole.begin() + (part.begin - chunk.begin));
      in += part.size();
    });
  }
}

}  // namespace cadre
