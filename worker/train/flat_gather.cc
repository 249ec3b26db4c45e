#include "worker/train/flat_gather.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"

namespace cadre {
namespace {

FlatRange Overlap(FlatRange a, FlatRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Calls `use(range)` with the part of each of a rank's ranges that lies in the chunk, in order.
template <typename Use>
void ForEachOverlap(const std::vector<FlatRange>& ranges, FlatRange chunk, const Use& use) {
  auto it = std::partition_point(ranges.begin(), ranges.end(),
                                 [&](const FlatRange& r) { return r.end <= chunk.begin; });
  for (; it != ranges.end() && it->begin < chunk.end; ++it) use(Overlap(*it, chunk));
}

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

absl::StatusOr<FlatGather> FlatGather::Make(int64_t size, std::span<const FlatRange> mine,
                                            Communicator& group) {
  FlatGather gather(mine, group);
  CADRE_RETURN_IF_ERROR(gather.ShareRanges());
  CADRE_RETURN_IF_ERROR(gather.CheckCover(size));
  return gather;
}

FlatGather::FlatGather(std::span<const FlatRange> mine, Communicator& group)
    : group_(&group), all_(static_cast<size_t>(group.size())) {
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].size() > 0) mine_.push_back({mine[i], i});
  }
  std::sort(mine_.begin(), mine_.end(),
            [](const Piece& a, const Piece& b) { return a.flat.begin < b.flat.begin; });
}

absl::Status FlatGather::ShareRanges() {
  std::vector<FlatRange> merged;
  for (const Piece& piece : mine_) {
    if (!merged.empty() && merged.back().end == piece.flat.begin) {
      merged.back().end = piece.flat.end;
    } else {
      merged.push_back(piece.flat);
    }
  }
  std::vector<uint64_t> counts(all_.size());
  counts[Index(group_->index())] = merged.size();
  CADRE_RETURN_IF_ERROR(group_->AllReduceSum(std::span<uint64_t>(counts)));

  std::vector<int64_t> offsets = {0};  // bytes
  for (const uint64_t count : counts) {
    offsets.push_back(offsets.back() + static_cast<int64_t>(count * sizeof(FlatRange)));
  }
  std::vector<FlatRange> ranges(Index(offsets.back()) / sizeof(FlatRange));
  const auto first = [&](size_t rank) {
    return ranges.begin() + offsets[rank] / static_cast<int64_t>(sizeof(FlatRange));
  };
  std::copy(merged.begin(), merged.end(), first(Index(group_->index())));
  CADRE_RETURN_IF_ERROR(group_->AllGatherBytes(std::as_writable_bytes(std::span(ranges)), offsets));
  for (size_t rank = 0; rank < all_.size(); ++rank) {
    all_[rank].assign(first(rank), first(rank + 1));
  }
  return absl::OkStatus();
}

absl::Status FlatGather::CheckCover(int64_t size) const {
  std::vector<FlatRange> ranges;
  for (const auto& of_rank : all_) ranges.insert(ranges.end(), of_rank.begin(), of_rank.end());
  std::sort(ranges.begin(), ranges.end(),
            [](const FlatRange& a, const FlatRange& b) { return a.begin < b.begin; });
  int64_t next = 0;
  for (const FlatRange& range : ranges) {
    if (range.begin != next) break;
    next = range.end;
  }
  if (next == size) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the ranks do not own each of the ", size,
                                          " elements once: position ", next,
                                          " is owned twice or by nobody"));
}

int64_t FlatGather::ElementsOf(int rank, FlatRange chunk) const {
  int64_t elements = 0;
  ForEachOverlap(all_[Index(rank)], chunk, [&](FlatRange part) { elements += part.size(); });
  return elements;
}

absl::Status FlatGather::Gather(FlatRange chunk, std::span<const float* const> values,
                                std::span<float> whole) {
  std::vector<int64_t> offsets = {0};
  for (int rank = 0; rank < group_->size(); ++rank) {
    offsets.push_back(offsets.back() + ElementsOf(rank, chunk));
  }
  CHECK_EQ(offsets.back(), chunk.size());
  packed_.resize(std::max(packed_.size(), Index(chunk.size())));
  const std::span<float> packed = std::span(packed_).first(Index(chunk.size()));
  Pack(chunk, values, packed.subspan(Index(offsets[Index(group_->index())])));
  CADRE_RETURN_IF_ERROR(group_->AllGather(packed, offsets));
  if (group_->index() == 0) Unpack(chunk, packed, whole);
  return absl::OkStatus();
}

void FlatGather::Pack(FlatRange chunk, std::span<const float* const> values,
                      std::span<float> packed) const {
  auto out = packed.begin();
  auto it = std::partition_point(mine_.begin(), mine_.end(),
                                 [&](const Piece& piece) { return piece.flat.end <= chunk.begin; });
  for (; it != mine_.end() && it->flat.begin < chunk.end; ++it) {
    const FlatRange part = Overlap(it->flat, chunk);
    out = std::copy_n(values[it->number] + (part.begin - it->flat.begin), part.size(), out);
  }
}

void FlatGather::Unpack(FlatRange chunk, std::span<const float> packed,
                        std::span<float> whole) const {
  auto in = packed.begin();
  for (const auto& of_rank : all_) {
    ForEachOverlap(of_rank, chunk, [&](FlatRange part) {
      std::copy_n(in, part.size(), whole.begin() + (part.begin - chunk.begin));
      in += part.size();
    });
  }
}

}  // namespace cadre
