#include "member/kept_change.h"

#include <cmath>

#include "model/coding.h"

namespace cadre {

std::optional<v1::Staleness> StalenessOf(const v1::Averaging& averaging) {
  if (!averaging.has_staleness()) return std::nullopt;
  v1::Staleness filled = averaging.staleness();
  if (!filled.has_weight()) {
    const std::optional<v1::Coding> up = CodingOf(averaging.up());
    filled.set_weight(up ? up->error_feedback() : 0.5F);
  }
  return filled;
}

// A change in fp32 has left nothing out.
KeptShare KeptShareOf(const v1::Averaging& averaging, uint32_t round, uint32_t version,
                      bool included, bool screened) {
  if (screened) return {};
  const std::optional<v1::Coding> up = CodingOf(averaging.up());
  const std::optional<v1::Staleness> staleness = StalenessOf(averaging);
  if (included) return {.factor = up ? up->error_feedback() : 0};
  if (version < round) return {.factor = 1};
  const uint32_t late = version + 1 - round;
  const uint32_t max_late = staleness ? staleness->max_rounds() : late;
  if (late > max_late) return {.dropped = late};
  const float weight = staleness ? staleness->weight() : up->error_feedback();
  return {.factor = std::pow(weight, static_cast<float>(late))};
}

}  // namespace cadre
