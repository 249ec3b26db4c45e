// Version 0 is a pure function of the run's specification: of its seed, or of the checkpoint that
// it names. Every aggregator computes its own shard, so no model is sent at the start of a run, and
// an aggregator that has lost version 0 can create it again.
#include "server/run_terms.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/initial_value.h"
#include "model/outer_optimizer.h"
#include "model/parameter_index.h"
#include "model/validate.h"
#include "server/client/frame.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

// Reads the values at positions first, first + 1, ... from their tensors.
absl::Status ReadFlat(const ParameterIndex& index, SafetensorsFile& file, int64_t first,
                      std::span<float> out) {
  for (const v1::Range& range : index.RangesOf(first, first + std::ssize(out))) {
    const StoredTensor& tensor = *file.Find(index[range.tensor()].name);
    const size_t elements = range.end() - range.begin();
    CADRE_RETURN_IF_ERROR(file.Read(tensor, range.begin(), out.first(elements)));
    out = out.subspan(elements);
  }
  return absl::OkStatus();
}

// States of the outer optimizer, and the residual of coded versions, for each value of a version.
int StatesOf(const v1::Averaging& averaging) {
  const auto outer = OuterOptimizerOf(averaging);
  return (outer ? OuterStates(*outer) : 0) + (CodingOf(averaging.down()) ? 1 : 0);
}

}  // namespace

absl::StatusOr<int64_t> SpaceOf(const v1::OpenRun& open) {
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index,
                         ParameterIndex::FromModel(open.spec().model()));
  const v1::Averaging& averaging = open.spec().averaging();
  const Interval span = ShardSpan(index.size(), open.shard(), std::max(1U, open.shards()));
  const int64_t groups = std::max(1U, open.spec().cluster().groups());
  const int64_t frames = CodingOf(averaging.down()) ? 1 : 0;
  return span.size() * int64_t{sizeof(float)} * (3 * (1 + StatesOf(averaging)) + frames + groups);
}

absl::StatusOr<RunTerms> RunTermsOf(const v1::OpenRun& open) {
  for (const std::string& name : {open.run(), open.lineage()}) {
    if (!ShardStore::IsFileName(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is not a run id or lineage: [A-Za-z0-9._-], at most 100"));
    }
  }
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index,
                         ParameterIndex::FromModel(open.spec().model()));
  RunTerms terms;
  terms.run = open.run();
  terms.lineage = open.lineage();
  terms.shard = open.shard();
  terms.shards = open.shards();
  // Programs with a loop of their own determine the number of their ranks.
  terms.ranks = open.spec().model().has_opaque()
                    ? kMaxRanksPerGroup
                    : std::max(1U, open.spec().cluster().ranks_per_group());
  for (const Parameter& parameter : index.parameters()) {
    terms.tensor_begin.push_back(parameter.offset);
    if (!IsStatistic(parameter.role)) continue;
    terms.statistics.push_back({parameter.offset, parameter.end()});
  }
  terms.tensor_begin.push_back(index.size());
  for (const auto& [group, number] : open.generations()) {
    const auto key = open.keys().find(group);
    terms.generations[group] = {
        number, key == open.keys().end() ? std::nullopt : ParseSecretKey(key->second)};
  }
  terms.outer_states = StatesOf(open.spec().averaging());
  terms.up = CodingOf(open.spec().averaging().up());
  terms.down = CodingOf(open.spec().averaging().down());
  for (const std::optional<v1::Coding>& coding : {terms.up, terms.down}) {
    if (coding) CADRE_RETURN_IF_ERROR(CheckCodec(CodecOf(*coding)));
  }
  if (ExchangesUnits(open.spec().averaging())) terms.units = std::make_shared<ExchangeUnits>(index);
  terms.fragments = FragmentsOf(open.spec().averaging());
  terms.version = open.version();
  if (open.has_hollow()) terms.hollow = open.hollow();
  return terms;
}

absl::StatusOr<ShardStore::Fill> InitialModel(const v1::RunSpec& spec, const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(ParameterIndex made, ParameterIndex::FromModel(spec.model()));
  // Shared because std::function requires copyable captures.
  const auto index = std::make_shared<const ParameterIndex>(std::move(made));
  if (spec.checkpoint().from().empty()) {
    return [index, seed = spec.seed()](int64_t first, std::span<float> out) {
      FillInitialValues(*index, seed, first, out);
      return absl::OkStatus();
    };
  }
  absl::StatusOr<SafetensorsFile> opened =
      OpenWeights(spec.checkpoint().from(), spec.model(), files);
  if (!opened.ok()) return Annotate(opened.status(), "checkpoint.from");
  const auto file = std::make_shared<SafetensorsFile>(*std::move(opened));
  return [index, file](int64_t first, std::span<float> out) {
    return ReadFlat(*index, *file, first, out);
  };
}

}  // namespace cadre
