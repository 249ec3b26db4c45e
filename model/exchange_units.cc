#include "model/exchange_units.h"

#include <algorithm>

namespace cadre {
namespace {

// Stripes of a fragment, if the model has enough units: every shard and every rank then has about
// the same share of every fragment.
constexpr int64_t kStripes = 64;

}  // namespace

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

std::vector<ExchangeUnit> ExchangeUnits::In(std::span<const Interval> intervals) const {
  std::vector<ExchangeUnit> units;
  for (const Interval& interval : intervals) {
    const std::span<const ExchangeUnit> more = In(interval);
    units.insert(units.end(), more.begin(), more.end());
  }
  return units;
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

int64_t ExchangeUnits::UnitsOfStripe(uint32_t fragments) const {
  if (fragments == 1) return std::ssize(units_);
  const int64_t stripes = int64_t{fragments} * kStripes;
  return (std::ssize(units_) + stripes - 1) / stripes;
}

int64_t ExchangeUnits::StripeEnd(int64_t position, uint32_t fragments) const {
  const int64_t unit = In({0, position + 1}).size() - 1;
  const int64_t stripe = UnitsOfStripe(fragments);
  const int64_t next = (unit / stripe + 1) * stripe;
  return next < std::ssize(units_) ? units_[next].positions.begin : size_;
}

std::vector<Interval> ExchangeUnits::FragmentIn(Interval part, uint32_t fragment,
                                                uint32_t fragments) const {
  if (part.empty()) return {};
  if (fragment == 0) return {part};
  const int64_t stripe = UnitsOfStripe(fragments);
  const std::span<const ExchangeUnit> units = In(part);
  const int64_t first = units.data() - units_.data();
  std::vector<Interval> intervals;
  for (int64_t i = 0; i < std::ssize(units); ++i) {
    if ((first + i) / stripe % fragments != fragment - 1) continue;
    const Interval& unit = units[i].positions;
    if (!intervals.empty() && intervals.back().end == unit.begin) {
      intervals.back().end = unit.end;
    } else {
      intervals.push_back(unit);
    }
  }
  return intervals;
}

}  // namespace cadre
