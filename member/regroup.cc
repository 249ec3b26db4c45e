#include "member/regroup.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/status.h"
#include "member/agreement.h"

namespace cadre {
namespace {

constexpr char kBuffers[] = "parts of the model between ranks";

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
  regroup.host_ = MakeHostDevice();
  CADRE_RETURN_IF_ERROR(regroup.Prepare(owned, part, group, *regroup.host_));
  return regroup;
}

absl::StatusOr<Regroup> Regroup::Make(std::span<const Owned> owned, Interval part,
                                      Communicator& control, Device& device, Communicator& data) {
  Regroup regroup(data);
  CADRE_RETURN_IF_ERROR(regroup.Prepare(owned, part, control, device));
  return regroup;
}

absl::Status Regroup::Prepare(std::span<const Owned> owned, Interval part, Communicator& control,
                              Device& device) {
  device_ = &device;
  for (size_t i = 0; i < owned.size(); ++i) order_.push_back(i);
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    return owned[a].positions.begin < owned[b].positions.begin;
  });
  // The part, then the slices.
  std::vector<Interval> mine = {part};
  for (const size_t i : order_) mine.push_back(owned[i].positions);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(Interval));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherTexts(bytes, control));
  for (const std::string& text : all) {
    std::vector<Interval> intervals(text.size() / sizeof(Interval));
    std::memcpy(intervals.data(), text.data(), text.size());
    parts_.push_back(intervals.at(0));
    slices_.emplace_back(intervals.begin() + 1, intervals.end());
  }
  const int self = data_->index();
  for (int rank = 0; rank < data_->size(); ++rank) {
    const bool other = rank != self;
    of_slices_.emplace_back(device, other ? SizeIn(slices_[self], parts_[rank]) : 0, kBuffers);
    of_part_.emplace_back(device, other ? SizeIn(slices_[rank], parts_[self]) : 0, kBuffers);
  }
  return device.status();
}

absl::Status Regroup::AllToAll(const Buffers& send, const Buffers& receive) {
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (const auto& buffer : send) from.push_back(std::as_bytes(buffer.span()));
  for (const auto& buffer : receive) to.push_back(std::as_writable_bytes(buffer.span()));
  return data_->AllToAll(from, to);
}

void Regroup::Copy(const float* from, float* to, int64_t size) {
  device_->Copy(from, to, size * sizeof(float));
}

template <typename Use>
void Regroup::ForEachInSlices(std::span<const Owned> owned, int rank, const Use& use) const {
  for (const size_t i : order_) {
    const Interval shared = Intersect(owned[i].positions, parts_[rank]);
    if (shared.empty()) continue;
    use(owned[i].values.data() + (shared.begin - owned[i].positions.begin), shared.size());
  }
}

template <typename Use>
void Regroup::ForEachInPart(int rank, const Use& use) const {
  const Interval part = parts_[data_->index()];
  for (const Interval& slice : slices_[rank]) {
    const Interval shared = Intersect(slice, part);
    if (!shared.empty()) use(shared.begin - part.begin, shared.size());
  }
}

absl::Status Regroup::ToPart(std::span<const Owned> owned, std::span<float> part) {
  const int self = data_->index();
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == self) continue;
    float* to = of_slices_[rank].data();
    ForEachInSlices(owned, rank, [&](const float* values, int64_t size) {
      Copy(values, std::exchange(to, to + size), size);
    });
  }
  CADRE_RETURN_IF_ERROR(AllToAll(of_slices_, of_part_));
  std::vector<const float*> own;
  ForEachInSlices(owned, self, [&](const float* values, int64_t) { own.push_back(values); });
  auto next = own.begin();
  ForEachInPart(self,
                [&](int64_t offset, int64_t size) { Copy(*next++, part.data() + offset, size); });
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == self) continue;
    const float* from = of_part_[rank].data();
    ForEachInPart(rank, [&](int64_t offset, int64_t size) {
      Copy(std::exchange(from, from + size), part.data() + offset, size);
    });
  }
  return absl::OkStatus();
}

absl::Status Regroup::FromPart(std::span<const float> part, std::span<const Owned> owned) {
  const int self = data_->index();
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == self) continue;
    float* to = of_part_[rank].data();
    ForEachInPart(rank, [&](int64_t offset, int64_t size) {
      Copy(part.data() + offset, std::exchange(to, to + size), size);
    });
  }
  CADRE_RETURN_IF_ERROR(AllToAll(of_part_, of_slices_));
  std::vector<float*> own;
  ForEachInSlices(owned, self, [&](float* values, int64_t) { own.push_back(values); });
  auto next = own.begin();
  ForEachInPart(self,
                [&](int64_t offset, int64_t size) { Copy(part.data() + offset, *next++, size); });
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == self) continue;
    const float* from = of_slices_[rank].data();
    ForEachInSlices(owned, rank, [&](float* values, int64_t size) {
      Copy(std::exchange(from, from + size), values, size);
    });
  }
  return absl::OkStatus();
}

}  // namespace cadre
