#include "tests/simulation/model.h"

#include <algorithm>
#include <bit>

#include "base/random.h"
#include "model/parameter_index.h"

namespace cadre::simulation {

uint64_t Hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return RandomBits(RandomBits(a, RandomStream::kTest, b, c), RandomStream::kTest, d, 0x5eed);
}

std::vector<uint64_t> TensorBegins(const v1::RunSpec& spec) {
  const absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  std::vector<uint64_t> begins;
  for (const Parameter& parameter : index.value().parameters()) {
    begins.push_back(static_cast<uint64_t>(parameter.offset));
  }
  begins.push_back(static_cast<uint64_t>(index->size()));
  return begins;
}

uint64_t InitialWord(const v1::RunSpec& spec, uint64_t position) {
  return Hash(spec.seed(), position, 1);
}

uint64_t TrainedWord(uint64_t base, uint32_t group, uint32_t generation, uint64_t samples) {
  return Hash(base, group, generation, samples);
}

uint64_t AddToMean(uint64_t sum, float weight, uint64_t word) {
  return Hash(sum, std::bit_cast<uint32_t>(weight), word, 2);
}

uint64_t DigestOf(const Words& words, const std::vector<FlatSpan>& spans) {
  uint64_t digest = 0;
  for (const FlatSpan& span : spans) {
    for (uint64_t p = span.begin; p < span.end; ++p) digest += Hash(p, words[p], 3);
  }
  return digest;
}

std::vector<FlatSpan> OwnedSpans(const std::vector<uint64_t>& begins, uint32_t rank,
                                 uint32_t ranks) {
  std::vector<FlatSpan> spans;
  for (size_t tensor = 0; tensor + 1 < begins.size(); ++tensor) {
    const FlatSpan part = ShardSpan(begins[tensor + 1] - begins[tensor], rank, ranks);
    if (part.size() > 0) spans.push_back({begins[tensor] + part.begin, begins[tensor] + part.end});
  }
  return spans;
}

std::vector<FlatSpan> Intersect(const std::vector<FlatSpan>& spans, FlatSpan within) {
  std::vector<FlatSpan> parts;
  for (const FlatSpan& span : spans) {
    const FlatSpan part{std::max(span.begin, within.begin), std::min(span.end, within.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

google::protobuf::RepeatedPtrField<v1::Range> RangesOf(const std::vector<uint64_t>& begins,
                                                       const std::vector<FlatSpan>& spans) {
  google::protobuf::RepeatedPtrField<v1::Range> ranges;
  for (size_t tensor = 0; tensor + 1 < begins.size(); ++tensor) {
    for (const FlatSpan& part : Intersect(spans, {begins[tensor], begins[tensor + 1]})) {
      v1::Range& range = *ranges.Add();
      range.set_tensor(static_cast<uint32_t>(tensor));
      range.set_begin(part.begin - begins[tensor]);
      range.set_end(part.end - begins[tensor]);
    }
  }
  return ranges;
}

}  // namespace cadre::simulation
