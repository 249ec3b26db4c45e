#include "server/stretches.h"

#include <algorithm>

#include "base/parallel_pieces.h"

namespace cadre {
namespace {

constexpr int64_t kStretch = 64 << 10;

}  // namespace

int64_t StretchEnd(const StretchRule& rule, Interval span, int64_t begin) {
  const ExchangeUnits* const units = rule.units;
  if (rule.fragments > 1) span.end = std::min(span.end, units->StripeEnd(begin, rule.fragments));
  if (span.end - begin <= kStretch) return span.end;
  return units == nullptr ? begin + kStretch : units->BorderAfter(begin + kStretch - kUnitSize);
}

absl::Status ForEachStretch(const StretchRule& rule, Interval span, int threads,
                            const StretchWork& compute, const StretchWork& append) {
  const auto with_interval = [](const StretchWork& work) -> PieceWork {
    return [&work](int thread, int64_t begin, int64_t end) { return work(thread, {begin, end}); };
  };
  // About the number of stretches; more threads would be idle.
  const int64_t useful = std::clamp<int64_t>((span.size() + kStretch - 1) / kStretch, 1, threads);
  const auto end_of = [&](int64_t begin) { return StretchEnd(rule, span, begin); };
  return ForEachPiece({span.begin, span.end, end_of}, static_cast<int>(useful),
                      with_interval(compute), with_interval(append));
}

}  // namespace cadre
