#include "worker/train/regroup.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/status.h"
#include "worker/train/agreement.h"

namespace cadre {
namespace {

int64_t SizeIn(const std::vector<Interval>& slices, Interval part) {
  int64_t size = 0;
  for (const Interval& slice : slices) {
    const Interval shared = Intersect(slice, part);
    size += shared.empty() ? 0 : shared.size();
  }
  return size;
}

}  // namespace

absl::StatusOr<Regroup> Regroup::Make(std::span<const Owned> owned, Interval part,
                                      Communicator& group) {
  Regroup regroup(group);
  for (size_t i = 0; i < owned.size(); ++i) regroup.order_.push_back(i);
  std::sort(regroup.order_.begin(), regroup.order_.end(), [&](size_t a, size_t b) {
    return owned[a].positions.begin < owned[b].positions.begin;
  });
  // The part, then the slices.
  std::vector<Interval> mine = {part};
  for (const size_t i : regroup.order_) mine.push_back(owned[i].positions);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(Interval));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(bytes, group));
  for (const std::string& text : all) {
    std::vector<Interval> intervals(text.size() / sizeof(Interval));
    std::memcpy(intervals.data(), text.data(), text.size());
    regroup.parts_.push_back(intervals.at(0));
    regroup.slices_.emplace_back(intervals.begin() + 1, intervals.end());
  }
  regroup.send_.resize(group.size());
  regroup.receive_.resize(group.size());
  return regroup;
}

absl::Status Regroup::AllToAll() {
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (const auto& buffer : send_) from.push_back(std::as_bytes(std::span(buffer)));
  for (auto& buffer : receive_) to.push_back(std::as_writable_bytes(std::span(buffer)));
  return group_->AllToAll(from, to);
}

absl::Status Regroup::ToPart(std::span<const Owned> owned, std::span<float> part) {
  const int mine = group_->index();
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == mine) continue;
    send_[rank].clear();
    for (const size_t i : order_) {
      const Interval positions = owned[i].positions;
      const Interval shared = Intersect(positions, parts_[rank]);
      if (shared.empty()) continue;
      const auto begin = owned[i].values.begin() + (shared.begin - positions.begin);
      send_[rank].insert(send_[rank].end(), begin, begin + shared.size());
    }
    receive_[rank].resize(SizeIn(slices_[rank], parts_[mine]));
  }
  CADRE_RETURN_IF_ERROR(AllToAll());
  for (const Owned& one : owned) {
    const Interval shared = Intersect(one.positions, parts_[mine]);
    if (shared.empty()) continue;
    std::copy_n(one.values.begin() + (shared.begin - one.positions.begin), shared.size(),
                part.begin() + (shared.begin - parts_[mine].begin));
  }
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == mine) continue;
    auto from = receive_[rank].begin();
    for (const Interval& slice : slices_[rank]) {
      const Interval shared = Intersect(slice, parts_[mine]);
      if (shared.empty()) continue;
      std::copy_n(from, shared.size(), part.begin() + (shared.begin - parts_[mine].begin));
      from += shared.size();
    }
  }
  return absl::OkStatus();
}

absl::Status Regroup::FromPart(std::span<const float> part, std::span<const Owned> owned) {
  const int mine = group_->index();
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == mine) continue;
    send_[rank].clear();
    for (const Interval& slice : slices_[rank]) {
      const Interval shared = Intersect(slice, parts_[mine]);
      if (shared.empty()) continue;
      const auto begin = part.begin() + (shared.begin - parts_[mine].begin);
      send_[rank].insert(send_[rank].end(), begin, begin + shared.size());
    }
    receive_[rank].resize(SizeIn(slices_[mine], parts_[rank]));
  }
  CADRE_RETURN_IF_ERROR(AllToAll());
  for (const Owned& one : owned) {
    const Interval shared = Intersect(one.positions, parts_[mine]);
    if (shared.empty()) continue;
    std::copy_n(part.begin() + (shared.begin - parts_[mine].begin), shared.size(),
                one.values.begin() + (shared.begin - one.positions.begin));
  }
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == mine) continue;
    auto from = receive_[rank].begin();
    for (const size_t i : order_) {
      const Interval positions = owned[i].positions;
      const Interval shared = Intersect(positions, parts_[rank]);
      if (shared.empty()) continue;
      std::copy_n(from, shared.size(), owned[i].values.begin() + (shared.begin - positions.begin));
      from += shared.size();
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
