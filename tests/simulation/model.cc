#include "tests/simulation/model.h"

#include <map>
#include <string>

#include "base/digest.h"
#include "base/random.h"
#include "model/coding.h"
#include "model/parameter_index.h"
#include "server/run_terms.h"

namespace cadre::simulation {

// Runs of all seeds have few models.
std::vector<int64_t> TensorBegins(const v1::RunSpec& spec) {
  static auto& known = *new std::map<std::string, std::vector<int64_t>>;
  std::vector<int64_t>& begins = known[spec.model().SerializeAsString()];
  if (!begins.empty()) return begins;
  const absl::StatusOr<ParameterIndex> index = ParameterIndex::FromModel(spec.model());
  for (const Parameter& parameter : index.value().parameters()) begins.push_back(parameter.offset);
  begins.push_back(index->size());
  return begins;
}

Values InitialValues(const v1::RunSpec& spec) {
  Values values(TensorBegins(spec).back());
  const absl::Status filled =
      MakeInitialVersion(spec, RootedFiles::Unrestricted()).value().values(0, values);
  return filled.ok() ? values : Values();
}

float StepChange(uint32_t group, uint32_t generation, int64_t position) {
  const uint64_t bits = RandomBits(group, RandomStream::kTest, generation, position);
  const float size = static_cast<float>(1 + (bits >> 1) % 8) / 8;
  return bits % 2 == 0 ? size : -size;
}

uint64_t DigestOf(const Values& values, const std::vector<Interval>& spans) {
  uint64_t digest = 0;
  for (const Interval& span : spans) {
    digest += Digest(std::span(values).subspan(span.begin, span.size()), span.begin);
  }
  return digest;
}

std::shared_ptr<const ExchangeUnits> UnitsOf(const v1::RunSpec& spec) {
  if (!ExchangesUnits(spec.averaging())) return nullptr;
  return std::make_shared<ExchangeUnits>(ParameterIndex::FromModel(spec.model()).value());
}

Interval SpanOfShard(const v1::RunSpec& spec, uint32_t shard, uint32_t shards) {
  if (const auto units = UnitsOf(spec)) return units->PartOf(shard, shards);
  return ShardSpan(TensorBegins(spec).back(), shard, shards);
}

std::vector<Interval> OwnedSpans(const v1::RunSpec& spec, uint32_t rank, uint32_t ranks) {
  if (const auto units = UnitsOf(spec)) return {units->PartOf(rank, ranks)};
  const std::vector<int64_t> begins = TensorBegins(spec);
  std::vector<Interval> spans;
  for (size_t tensor = 0; tensor + 1 < begins.size(); ++tensor) {
    const Interval part = ShardSpan(begins[tensor + 1] - begins[tensor], rank, ranks);
    if (!part.empty()) spans.push_back({begins[tensor] + part.begin, begins[tensor] + part.end});
  }
  return spans;
}

std::vector<Interval> PositionsOf(const v1::RunSpec& spec, uint32_t fragment) {
  const Interval all(0, TensorBegins(spec).back());
  if (fragment == 0) return {all};
  return UnitsOf(spec)->FragmentIn(all, fragment, FragmentsOf(spec.averaging()));
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
