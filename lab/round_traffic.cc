#include "lab/round_traffic.h"

#include <optional>

#include "kernels/codec/codec.h"
#include "kernels/codec/coding.h"
#include "model/coding.h"
#include "model/exchange_units.h"

namespace cadre {
namespace {

constexpr int64_t kWord = sizeof(float);

// A frame (model/frame.h): every unit has its own code, padded to whole words.
int64_t BytesOf(const v1::Coding& coding, const ParameterIndex& index) {
  const std::optional<v1::Coding> filled = CodingOf(coding);
  if (!filled) return index.size() * kWord;
  const Codec codec = CodecOf(*filled);
  const ExchangeUnits units(index);
  int64_t words = 0;
  for (const ExchangeUnit& unit : units.all()) {
    const int64_t size = unit.positions.size();
    words += unit.kind == ExchangeUnit::Kind::kCoded
                 ? (MaxCodedBytes(codec, size) + kWord - 1) / kWord
                 : size;
  }
  return words * kWord;
}

}  // namespace

RoundTraffic RoundTrafficOf(const v1::Averaging& averaging, const ParameterIndex& index) {
  return {BytesOf(averaging.up(), index), BytesOf(averaging.down(), index)};
}

}  // namespace cadre
