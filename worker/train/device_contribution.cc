#include "worker/train/device_contribution.h"

#include <utility>

#include "base/status.h"
#include "worker/nn/allocation_label.h"

namespace cadre {
namespace {

constexpr char kChanges[] = "changes of contributions";

}  // namespace

absl::StatusOr<std::unique_ptr<ContributionCoder>> DeviceContribution::Make(
    Backend& kernels, std::vector<Owned> slices, Layout layout, Communicator& control,
    Communicator& data) {
  const int64_t bytes_before = kernels.device().bytes_in_use();
  const AllocationLabel allocation_label(kernels.device(), "the coded contribution");
  CADRE_ASSIGN_OR_RETURN(Regroup regroup,
                         Regroup::Make(slices, layout.part, control, kernels.device(), data));
  std::unique_ptr<DeviceContribution> made(
      new DeviceContribution(kernels, std::move(slices), std::move(layout), std::move(regroup)));
  made->device_bytes_ = kernels.device().bytes_in_use() - bytes_before;
  CADRE_RETURN_IF_ERROR(kernels.device().status());
  return made;
}

DeviceContribution::DeviceContribution(Backend& kernels, std::vector<Owned> slices, Layout layout,
                                       Regroup regroup)
    : kernels_(kernels),
      device_(kernels.device()),
      slices_(std::move(slices)),
      codec_(layout.codec),
      regroup_(std::move(regroup)),
      change_(device_, layout.part.size(), kChanges),
      base_(device_, layout.part.size(), kChanges),
      carried_(device_, layout.part.size(), kChanges) {
  int64_t begin = 0;
  for (std::vector<ExchangeUnit>& units : layout.shards) {
    std::vector<CodedUnit> coded;
    int64_t end = begin;
    for (const ExchangeUnit& unit : units) {
      coded.push_back({.size = unit.positions.size(),
                       .coded = unit.kind == ExchangeUnit::Kind::kCoded,
                       .trained = unit.kind != ExchangeUnit::Kind::kStatistic});
      end += unit.positions.size();
    }
    shards_.push_back({.units = std::move(units),
                       .coded = kernels_.codecs()->MakeUnits(codec_, coded),
                       .values = {begin, end}});
    begin = end;
  }
  CHECK_EQ(begin, layout.part.size());
}

absl::Status DeviceContribution::Adopt() {
  CADRE_RETURN_IF_ERROR(device_.status());
  return regroup_.ToPart(slices_, base_.span());
}

absl::Status DeviceContribution::TakeChange() {
  CADRE_RETURN_IF_ERROR(device_.status());
  CADRE_RETURN_IF_ERROR(regroup_.ToPart(slices_, change_.span()));
  for (const Shard& shard : shards_) {
    kernels_.codecs()->TakeChange(*shard.coded, In(shard, base_), In(shard, carried_),
                                  In(shard, change_));
  }
  return device_.status();
}

absl::Status DeviceContribution::Encode(size_t shard, std::string* frame) {
  CADRE_RETURN_IF_ERROR(device_.status());
  const Shard& of = shards_[shard];
  const std::span<float> change = In(of, change_);
  if (kernels_.codecs()->Encode(*of.coded, change, In(of, base_), frame)) return device_.status();
  // The host finds the same value, and names its position.
  std::vector<float> values(change.size());
  CADRE_RETURN_IF_ERROR(device_.CopyOut(change.data(), values.data(), change.size_bytes()));
  CADRE_RETURN_IF_ERROR(EncodeFrame(of.units, codec_, values, frame));
  return absl::InternalError("only the device finds a value that is not finite");
}

void DeviceContribution::Carry(size_t shard, bool left_out, float factor) {
  if (!device_.status().ok()) return;
  const Shard& of = shards_[shard];
  kernels_.codecs()->Carry(*of.coded, factor, In(of, left_out ? base_ : change_), In(of, carried_));
}

absl::Status DeviceContribution::CopyOut(Kind kind, std::span<float> values) {
  CADRE_RETURN_IF_ERROR(device_.status());
  const DeviceArray<float>& array = kind == Kind::kCarried  ? carried_
                                    : kind == Kind::kChange ? change_
                                                            : base_;
  const std::span<float> from = array.span();
  CHECK_EQ(values.size(), from.size());
  return device_.CopyOut(from.data(), values.data(), from.size_bytes());
}

void DeviceContribution::SetCarried(std::span<const float> values) {
  CHECK_EQ(values.size(), carried_.size());
  if (!device_.status().ok()) return;
  device_.CopyIn(values.data(), carried_.data(), values.size_bytes());
}

}  // namespace cadre
