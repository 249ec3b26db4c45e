#include "kernels/cuda/weight_copies.h"

#include <functional>
#include <iterator>
#include <utility>

namespace cadre {

// The requested interval may be any part of a copy, because layers use parts of a bucket (the
// parameters that Renew was called for). So the copies are ordered by address, and the last one
// that begins at or before the interval is examined.
Values WeightCopies::Find(std::span<const float> weights) const {
  auto after = copies_.upper_bound(weights.data());
  if (weights.empty() || after == copies_.begin()) return {};
  const auto& [begin, copy] = *std::prev(after);
  const size_t offset = weights.data() - begin;
  if (offset >= copy.size || weights.size() > copy.size - offset) return {};
  return {copy.values.data() + offset, weights.size(), DType::kBFloat16};
}

void WeightCopies::Renew(std::span<const float> weights) {
  if (weights.empty()) return;
  if (Find(weights).empty()) Make(weights);
  const Values copy = Find(weights);
  if (!copy.empty()) LaunchConvert(device_, weights, copy);
}

// Copies that the new one overlaps are replaced but kept until Clear, since enqueued work and
// captured graphs may still read them.
void WeightCopies::Make(std::span<const float> weights) {
  if (device_.capturing()) {
    device_.Fail(absl::InternalError("parameters were first announced while a graph was captured"));
    return;
  }
  const float* const end = weights.data() + weights.size();
  const std::less<const float*> before;
  for (auto it = copies_.begin(); it != copies_.end();) {
    const bool overlaps =
        before(it->first, end) && before(weights.data(), it->first + it->second.size);
    if (overlaps) replaced_.push_back(std::move(it->second.values));
    it = overlaps ? copies_.erase(it) : std::next(it);
  }
  DeviceArray<uint16_t> values(device_, weights.size(), "bf16 weights");
  if (values.data() == nullptr) return;
  copies_[weights.data()] = {.size = weights.size(), .values = std::move(values)};
}

void WeightCopies::Clear() {
  copies_.clear();
  replaced_.clear();
}

}  // namespace cadre
