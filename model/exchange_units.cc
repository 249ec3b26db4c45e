#include "model/exchange_units.h"

#include <algorithm>

namespace cadre {

ExchangeUnits::ExchangeUnits(const ParameterIndex& index) : size_(index.size()) {
  for (const Parameter& parameter : index.parameters()) {
    const auto kind = IsStatistic(parameter.role)   ? ExchangeUnit::Kind::kStatistic
                      : parameter.shape.rank() <= 1 ? ExchangeUnit::Kind::kExact
                                                    : ExchangeUnit::Kind::kCoded;
    for (int64_t begin = parameter.offset; begin < parameter.end(); begin += kUnitSize) {
      units_.push_back({{begin, std::min(begin + kUnitSize, parameter.end())}, kind});
    }
  }
}

std::span<const ExchangeUnit> ExchangeUnits::In(Interval positions) const {
  const auto at = [this](int64_t position) {
    return std::partition_point(units_.begin(), units_.end(), [&](const ExchangeUnit& unit) {
      return unit.positions.begin < position;
    });
  };
  if (positions.empty()) return {};
  return {at(positions.begin), at(positions.end)};
}

int64_t ExchangeUnits::BorderAfter(int64_t position) const {
  const auto unit = std::partition_point(
      units_.begin(), units_.end(),
      [&](const ExchangeUnit& each) { return each.positions.begin < position; });
  return unit == units_.end() ? size_ : unit->positions.begin;
}

Interval ExchangeUnits::PartOf(int64_t part, int64_t parts) const {
  const auto cut = [&](int64_t i) {
    // size * i / parts without overflow.
    return BorderAfter(size_ / parts * i + size_ % parts * i / parts);
  };
  return {cut(part), cut(part + 1)};
}

}  // namespace cadre
