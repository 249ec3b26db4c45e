#include "worker/train/owned_slices.h"

#include <algorithm>
#include <utility>

#include "base/digest.h"
#include "base/status.h"
#include "worker/nn/allocation_label.h"

namespace cadre {

OwnedSlices::OwnedSlices(Backend& kernels, ParameterStore& parameters,
                         std::vector<SliceOptimizer>& optimizers)
    : kernels_(kernels),
      device_(kernels.device()),
      parameters_(parameters),
      optimizers_(optimizers) {
  std::vector<std::span<float>> slices;
  for (int b = 0; b < parameters.buckets(); ++b) {
    slices.push_back(parameters.ownership(b).SliceOf(parameters.weights(b)));
  }
  const AllocationLabel allocation_label(device_, "weights as the host sees them");
  mirror_ = std::make_unique<SliceMirror>(device_, std::move(slices));
  if (device_.status().ok()) weights_ = OwnedIn(*mirror_);
}

std::vector<Owned> OwnedSlices::OwnedIn(
    const std::function<std::span<float>(int bucket)>& slice_of) const {
  std::vector<Owned> owned;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    AppendOwned(parameters_.ownership(b), slice_of(b), &owned);
  }
  std::sort(owned.begin(), owned.end(),
            [](const Owned& a, const Owned& b) { return a.positions.begin < b.positions.begin; });
  return owned;
}

std::vector<Owned> OwnedSlices::OwnedIn(const SliceMirror& mirror) const {
  return OwnedIn([&](int bucket) { return mirror.host(bucket); });
}

std::vector<Owned> OwnedSlices::OnDevice() const {
  return OwnedIn([this](int bucket) { return mirror_->slice(bucket); });
}

std::vector<Owned> OwnedSlices::State(int i) { return OwnedIn(StateMirror(i)); }

SliceMirror& OwnedSlices::StateMirror(int i) {
  state_mirrors_.resize(states());
  std::unique_ptr<SliceMirror>& mirror = state_mirrors_[i];
  if (mirror == nullptr) {
    std::vector<std::span<float>> slices;
    for (SliceOptimizer& optimizer : optimizers_) slices.push_back(optimizer.state(i));
    const AllocationLabel allocation_label(device_, "the optimizer's state as the host sees it");
    mirror = std::make_unique<SliceMirror>(device_, std::move(slices));
  }
  return *mirror;
}

void OwnedSlices::MakeStateMirrors() {
  for (int i = 0; i < states(); ++i) StateMirror(i);
}

std::vector<UpdateCount> OwnedSlices::UpdateCounts() const {
  std::vector<UpdateCount> counts;
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    for (const SliceOptimizer::Counted& counted : optimizers_[b].CountedUpdates()) {
      for (const OwnedInterval& owned : bucket.owned) {
        const int64_t begin = owned.offset - bucket.slice_begin();
        const Interval common =
            Intersect(counted.elements, {begin, begin + owned.positions.size()});
        if (common.empty()) continue;
        const int64_t first = owned.positions.begin + common.begin - begin;
        counts.push_back({{first, first + common.size()}, counted.updates});
      }
    }
  }
  std::sort(counts.begin(), counts.end(), [](const UpdateCount& a, const UpdateCount& b) {
    return a.positions.begin < b.positions.begin;
  });
  return counts;
}

void OwnedSlices::SetUpdates(std::span<const UpdateCount> counts) {
  int64_t max_updates = 0;
  for (const UpdateCount& each : counts) max_updates = std::max(max_updates, each.updates);
  for (int b = 0; b < parameters_.buckets(); ++b) {
    const BucketOwnership& bucket = parameters_.ownership(b);
    std::vector<SliceOptimizer::Counted> fewer;
    for (const OwnedInterval& owned : bucket.owned) {
      const int64_t shift = owned.offset - bucket.slice_begin() - owned.positions.begin;
      const auto add = [&](int64_t begin, int64_t end, int64_t updates) {
        if (begin < end && updates < max_updates)
          fewer.push_back({{begin + shift, end + shift}, updates});
      };
      int64_t next = owned.positions.begin;
      auto each = std::partition_point(counts.begin(), counts.end(), [&](const UpdateCount& count) {
        return count.positions.end <= next;
      });
      for (; each != counts.end() && each->positions.begin < owned.positions.end; ++each) {
        const Interval common = Intersect(each->positions, owned.positions);
        add(next, common.begin, 0);
        add(common.begin, common.end, each->updates);
        next = common.end;
      }
      add(next, owned.positions.end, 0);
    }
    std::sort(fewer.begin(), fewer.end(),
              [](const auto& a, const auto& b) { return a.elements.begin < b.elements.begin; });
    optimizers_[b].SetUpdates(max_updates, fewer);
  }
}

absl::Status OwnedSlices::Fetch(bool states) {
  if (current_ && !states) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(
      Copy(!current_, states, [](SliceMirror& mirror, size_t i) { mirror.CopyToHostAsync(i); }));
  current_ = true;
  return absl::OkStatus();
}

absl::Status OwnedSlices::FetchStates() {
  return Copy(/*weights=*/false, /*states=*/true,
              [](SliceMirror& mirror, size_t i) { mirror.CopyToHostAsync(i); });
}

absl::Status OwnedSlices::Store(bool states) {
  CADRE_RETURN_IF_ERROR(Copy(/*weights=*/true, states,
                             [](SliceMirror& mirror, size_t i) { mirror.CopyToDeviceAsync(i); }));
  for (size_t i = 0; i < mirror_->size(); ++i) {
    if (!mirror_->slice(i).empty()) kernels_.WeightsChanged(mirror_->slice(i));
  }
  current_ = true;
  return absl::OkStatus();
}

absl::Status OwnedSlices::Copy(bool weights, bool states,
                               const std::function<void(SliceMirror&, size_t)>& copy) {
  const OnStream copies(device_, Stream::kCopies);
  for (size_t i = 0; weights && i < mirror_->size(); ++i) copy(*mirror_, i);
  for (int s = 0; states && s < this->states(); ++s) {
    for (size_t i = 0; i < mirror_->size(); ++i) copy(StateMirror(s), i);
  }
  const std::unique_ptr<DeviceEvent> copied = device_.MakeEvent();
  device_.Record(*copied);
  return device_.Await(*copied);
}

bool OwnedSlices::AllFinite() {
  for (size_t i = 0; i < mirror_->size(); ++i) {
    if (!kernels_.memory().AllFinite(mirror_->slice(i))) return false;
  }
  return true;
}

uint64_t OwnedSlices::Digest() const {
  uint64_t digest = 0;
  for (const Owned& owned : weights_) {
    digest += cadre::Digest(owned.values, owned.positions.begin);
  }
  return digest;
}

}  // namespace cadre
