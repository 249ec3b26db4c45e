#include "plan/exchange_memory.h"

#include <algorithm>

#include "kernels/codec/codec.h"
#include "kernels/codec/coding.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/frame.h"
#include "model/optimizer_state.h"

namespace cadre {
namespace {

constexpr int64_t kWord = sizeof(float);

bool Overlaps(const v1::Averaging& averaging) { return averaging.overlap().steps() > 0; }

int64_t States(const v1::RunSpec& spec) {
  return std::ssize(OptimizerStateNames(spec.optimizer()));
}

// Each rank of a group of several exchanges one part (kMaxOwnedIntervals), of which it has a copy.
int64_t BytesOf(const v1::RunSpec& spec, const ExchangedValues& values, bool copied, int64_t owned,
                int ranks) {
  const v1::Averaging& averaging = spec.averaging();
  return ExchangeBufferBytes(averaging, values) + CarriedBytes(averaging, values, ranks) +
         StateCopyBytes(averaging, owned * States(spec), ranks) +
         (copied ? values.elements * kWord : 0);
}

}  // namespace

int64_t ExchangeBufferBytes(const v1::Averaging& averaging, const ExchangedValues& values) {
  const bool keeps = KeepsChanges(averaging) && !values.on_device;
  const bool overlaps = Overlaps(averaging);
  const bool coded = CodingOf(averaging.up()).has_value();
  const bool reads_owned = values.contiguous && !overlaps && !keeps;
  // The version; what is carried, staged and contributed; the values of all fragments.
  const int buffers = 1 + (keeps ? 1 : 0) + (!coded && !reads_owned ? 1 : 0) +
                      (overlaps && keeps ? 1 : 0) + (FragmentsOf(averaging) > 1 ? 1 : 0);
  return kWord * (buffers * values.elements + values.frame_words);
}

int64_t SettledBytes(int64_t elements, int tensors, int ranks) {
  const int copies = std::min(ranks, 2);
  return elements * copies * (tensors + 1) * kWord;
}

int64_t CarriedBytes(const v1::Averaging& averaging, const ExchangedValues& values, int ranks) {
  if (!KeepsChanges(averaging) || (ranks == 1 && !values.on_device)) return 0;
  return SettledBytes(values.elements, CodingOf(averaging.up()).has_value() ? 2 : 1, ranks);
}

int64_t StateCopyBytes(const v1::Averaging& averaging, int64_t values, int ranks) {
  if (ranks > 1) return 4 * values * kWord;
  return (Overlaps(averaging) ? 2 : 1) * values * kWord;
}

int64_t ExchangeBytes(const v1::RunSpec& spec, const ParameterIndex& index,
                      std::span<const BucketOwnership> buckets, int rank, int ranks,
                      bool on_device) {
  const v1::Averaging& averaging = spec.averaging();
  if (StepsOfRound(averaging) == 0) return 0;
  int64_t owned = 0, intervals = 0;
  for (const BucketOwnership& bucket : buckets) {
    owned += bucket.slice_end() - bucket.slice_begin();
    intervals += std::ssize(bucket.owned);
  }
  const bool in_units = ExchangesUnits(averaging);
  const bool many = intervals * ranks > kMaxOwnedIntervals;
  ExchangedValues values{.elements = owned,
                         .contiguous = intervals == 1,
                         .on_device = on_device && CodesOnDevice(averaging) && !many};
  const bool copied = many || (in_units && ranks > 1);
  if (in_units || copied) {
    const ExchangeUnits units(index);
    const Interval part = units.PartOf(rank, ranks);
    values.elements = part.size();
    values.contiguous = values.contiguous || copied;
    if (const auto up = CodingOf(averaging.up())) {
      values.frame_words = MaxFrameWords(units.In(part), CodecOf(*up));
    }
  }
  return BytesOf(spec, values, copied, owned, ranks);
}

double ExchangeBytesPerValue(const v1::RunSpec& spec, int ranks, bool on_device) {
  const v1::Averaging& averaging = spec.averaging();
  if (StepsOfRound(averaging) == 0) return 0;
  ExchangedValues values{.elements = kUnitSize, .on_device = on_device && CodesOnDevice(averaging)};
  if (const auto up = CodingOf(averaging.up())) {
    values.frame_words =
        (static_cast<int64_t>(MaxCodedBytes(CodecOf(*up), kUnitSize)) + kWord - 1) / kWord;
  }
  const bool copied = ExchangesUnits(averaging) && ranks > 1;
  return static_cast<double>(BytesOf(spec, values, copied, kUnitSize, ranks)) / kUnitSize;
}

}  // namespace cadre
