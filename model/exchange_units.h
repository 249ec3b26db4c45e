// The units in which groups and aggregators code differences of the model: pieces of tensors of at
// most kUnitSize values, in parameter order. Borders depend only on the model, so every group and
// every shard codes and decodes the same units, whatever their meshes and cuts are.
//
// A fragment (run.proto, Fragments) consists of whole units, too. Number 0 stands for the whole
// model, numbers 1 to `fragments` for one of the fragments.
//
// A value; immutable and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parameter_index.h"
#include "tensor/interval.h"

namespace cadre {

inline constexpr int64_t kUnitSize = 4096;

struct ExchangeUnit {
  enum class Kind {
    // Running statistics, whose values are exchanged instead of differences: a variance must not
    // become negative.
    kStatistic,
    // Tensors of one dimension (biases, scales of norms): few values on which much depends.
    kExact,
    kCoded,
  };
  Interval positions;
  Kind kind = Kind::kCoded;
};

class ExchangeUnits {
 public:
  explicit ExchangeUnits(const ParameterIndex& index);

  std::span<const ExchangeUnit> all() const { return units_; }
  // The units of an interval. Requires: IsBorder of its ends.
  std::span<const ExchangeUnit> In(Interval positions) const;
  std::vector<ExchangeUnit> In(std::span<const Interval> intervals) const;
  // Whether no unit contains both the position and the one before it.
  bool IsBorder(int64_t position) const { return BorderAfter(position) == position; }
  // The first border that is not before the position. Requires: position <= size of the model.
  int64_t BorderAfter(int64_t position) const;
  // The part `part` of `parts` of the model, cut at borders. Their sizes differ by less than two
  // units.
  Interval PartOf(int64_t part, int64_t parts) const;
  // The end of the stripe of a fragment that contains the position; the size of the model if there
  // is one fragment only.
  int64_t StripeEnd(int64_t position, uint32_t fragments) const;
  // What `part` has of a fragment, in order: no interval is empty or adjacent to the next.
  // Requires: IsBorder of the ends of `part`; fragment <= fragments.
  std::vector<Interval> FragmentIn(Interval part, uint32_t fragment, uint32_t fragments) const;

 private:
  // The number of consecutive units in a stripe. Fragment f has every fragments-th stripe.
  int64_t UnitsOfStripe(uint32_t fragments) const;

  std::vector<ExchangeUnit> units_;
  int64_t size_ = 0;
};

}  // namespace cadre
