#include "tests/simulation/model.h"

#include <bit>

#include "base/random.h"
#include "model/parameter_index.h"

namespace cadre::simulation {

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return RandomBits(RandomBits(a, RandomStream::kTest, b, c), RandomStream::kTest, d, 0x5eed);
}

std::vector<int64_t> TensorBegins(const v1::RunSpec& spec) {
  const absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  std::vector<int64_t> begins;
  for (const Parameter& parameter : index.value().parameters()) begins.push_back(parameter.offset);
  begins.push_back(index->size());
  return begins;
}

Words InitialWords(const v1::RunSpec& spec, Interval span) {
  Words words(TensorBegins(spec).back());
  for (int64_t p = span.begin; p < span.end; ++p) words[p] = Hash(spec.seed(), p, 1);
  return words;
}

uint64_t TrainedWord(uint64_t base, uint32_t group, uint32_t generation, uint64_t samples) {
  return Hash(base, group, generation, samples);
}

uint64_t AddToMean(uint64_t sum, float weight, uint64_t word) {
  return Hash(sum, std::bit_cast<uint32_t>(weight), word, 2);
}

uint64_t DigestOf(const Words& words, const std::vector<Interval>& spans) {
  uint64_t digest = 0;
  for (const Interval& span : spans) {
    for (int64_t p = span.begin; p < span.end; ++p) digest += Hash(p, words[p], 3);
  }
  return digest;
}

std::vector<Interval> OwnedSpans(const std::vector<int64_t>& begins, uint32_t rank,
                                 uint32_t ranks) {
  std::vector<Interval> spans;
  for (size_t tensor = 0; tensor + 1 < begins.size(); ++tensor) {
    const Interval part = ShardSpan(begins[tensor + 1] - begins[tensor], rank, ranks);
    if (!part.empty()) spans.push_back({begins[tensor] + part.begin, begins[tensor] + part.end});
  }
  return spans;
}

std::vector<Interval> PartsWithin(const std::vector<Interval>& spans, Interval within) {
  std::vector<Interval> parts;
  for (const Interval& span : spans) {
    const Interval part = Intersect(span, within);
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<int64_t>& begins,
                                                       const std::vector<Interval>& spans) {
  google::protobuf::RepeatedPtrField<v1::Range> ranges;
  for (size_t tensor = 0; tensor + 1 < begins.size(); ++tensor) {
    for (const Interval& part : PartsWithin(spans, {begins[tensor], begins[tensor + 1]})) {
      v1::Range& range = *ranges.Add();
      range.set_tensor(tensor);
      range.set_begin(part.begin - begins[tensor]);
      range.set_end(part.end - begins[tensor]);
    }
  }
  return ranges;
}

}  // namespace cadre::simulation
