// An announcement that overlaps others, but is not a part of one, replaces them: their memory now
// holds other parameters.
#include "kernels/cpu/bf16_weights.h"

#include <functional>
#include <iterator>

namespace cadre {
namespace {

constexpr std::less<const float*> kBefore;

// Whether the arrays of these sizes have an element in common.
bool Overlap(const float* a, size_t a_size, const float* b, size_t b_size) {
  return kBefore(a, b + b_size) && kBefore(b, a + a_size);
}

bool Contains(const float* a, size_t a_size, const float* b, size_t b_size) {
  return !kBefore(b, a) && !kBefore(a + a_size, b + b_size);
}

}  // namespace

void Bf16Weights::Announce(std::span<const float> weights) {
  Changed(weights);
  if (weights.empty()) return;
  for (auto it = announced_.begin(); it != announced_.end();) {
    const auto& [begin, announced] = *it;
    if (Contains(begin, announced.size, weights.data(), weights.size())) return;
    const bool replaced = Overlap(begin, announced.size, weights.data(), weights.size());
    it = replaced ? announced_.erase(it) : std::next(it);
  }
  announced_[weights.data()].size = weights.size();
}

void Bf16Weights::Changed(std::span<const float> weights) {
  for (auto& [begin, announced] : announced_) {
    if (!Overlap(begin, announced.size, weights.data(), weights.size())) continue;
    for (auto& [copied, copy] : announced.copies) {
      if (Overlap(copied, copy.values.size(), weights.data(), weights.size())) copy.current = false;
    }
  }
}

Bf16Weights::Copy* Bf16Weights::CopyOf(std::span<const float> weights) {
  const auto after = announced_.upper_bound(weights.data());
  if (weights.empty() || after == announced_.begin()) return nullptr;
  auto& [begin, announced] = *std::prev(after);
  if (!Contains(begin, announced.size, weights.data(), weights.size())) return nullptr;
  Copy& copy = announced.copies[weights.data()];
  if (copy.values.size() != weights.size()) {
    copy = {.values = std::vector<Bf16>(weights.size())};
  }
  return &copy;
}

}  // namespace cadre
