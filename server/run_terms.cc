// Version 0 is a pure function of the run's specification: of its seed, or of the checkpoint that
// it names. So are the states that are stored with it, which are zeros unless a checkpoint has
// them. Every aggregator computes its own shard, so no model is sent at the start of a run, and an
// aggregator that has lost version 0 can create it again.
#include "server/run_terms.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/averaging_state.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/formats/checkpoint_folder.h"
#include "model/formats/checkpoint_manifest.h"
#include "model/frame.h"
#include "model/initial_value.h"
#include "model/outer_optimizer.h"
#include "model/parameter_index.h"
#include "model/shard_copies.h"
#include "model/shard_space.h"
#include "model/validate.h"
#include "server/client/shard_span.h"

namespace cadre {
namespace {

// Produces the values at positions first, first + 1, ... of the weights, or of a state, in the
// tensors of a checkpoint. Running statistics have no states.
ShardStore::Fill FillFrom(std::shared_ptr<const ParameterIndex> index,
                          std::shared_ptr<SafetensorsFile> file,
                          const std::optional<std::string>& state = std::nullopt) {
  return [index = std::move(index), file = std::move(file), state](
             int64_t first, std::span<float> out) -> absl::Status {
    for (const v1::Range& range : index->RangesOf(first, first + std::ssize(out))) {
      const Parameter& parameter = (*index)[range.tensor()];
      const std::span<float> values = out.first(range.end() - range.begin());
      out = out.subspan(values.size());
      if (state && IsStatistic(parameter.role)) {
        std::fill(values.begin(), values.end(), 0.0F);
        continue;
      }
      const StoredTensor& tensor =
          *file->Find(state ? StateTensorName(parameter.name, *state) : parameter.name);
      CADRE_RETURN_IF_ERROR(file->Read(tensor, range.begin(), values));
    }
    return absl::OkStatus();
  };
}

// The states of a run that the checkpoint in `folder` contains, as those of an InitialVersion.
absl::StatusOr<std::vector<ShardStore::Fill>> InitialStates(
    const std::string& folder, const std::shared_ptr<const ParameterIndex>& index,
    const v1::Averaging& averaging, const RootedFiles& files) {
  const std::vector<std::string> names = ShardStateNames(averaging);
  std::vector<ShardStore::Fill> states;
  if (names.empty()) return states;
  const std::filesystem::path path(folder);
  CADRE_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest,
                         ReadManifest((path / kManifestFile).string(), files));
  const std::vector<std::string> stored = AveragingStateNames(manifest);
  const auto is_stored = [&](const std::string& name) {
    return std::find(stored.begin(), stored.end(), name) != stored.end();
  };
  for (const std::string& name : stored) {
    const bool is_used =
        name == kContributionResidual || std::find(names.begin(), names.end(), name) != names.end();
    LOG_IF(WARNING, !is_used) << folder << ": the run does not use its " << name;
  }
  if (std::none_of(names.begin(), names.end(), is_stored)) return states;
  CADRE_ASSIGN_OR_RETURN(SafetensorsFile opened, OpenTensors((path / kAveragingFile).string(),
                                                             StateTensors(*index, stored), files));
  const auto file = std::make_shared<SafetensorsFile>(std::move(opened));
  for (const std::string& name : names) {
    states.push_back(is_stored(name) ? FillFrom(index, file, name) : nullptr);
  }
  return states;
}

// Elements of the other shard that this aggregator copies; 0: none.
int64_t CopiedElements(const v1::OpenRun& open, int64_t parameters) {
  const uint32_t shards = std::max(1U, open.shards());
  if (!HasCopies(open.spec().averaging(), shards)) return 0;
  return ShardSpan(parameters, CopiedShard(open.shard(), shards), shards).size();
}

}  // namespace

absl::StatusOr<int64_t> CopySpaceOf(const v1::OpenRun& open) {
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index,
                         ParameterIndex::FromModel(open.spec().model()));
  return SpaceOfCopy(open.spec().averaging(), CopiedElements(open, index.size()));
}

absl::StatusOr<int64_t> SpaceOf(const v1::OpenRun& open) {
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index,
                         ParameterIndex::FromModel(open.spec().model()));
  const uint32_t shards = std::max(1U, open.shards());
  return SpaceOfShard(open.spec(), ShardSpan(index.size(), open.shard(), shards).size(),
                      CopiedElements(open, index.size()));
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
  terms.outer_states = static_cast<int>(std::ssize(ShardStateNames(open.spec().averaging())));
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

absl::StatusOr<ShardStore::InitialVersion> MakeInitialVersion(const v1::RunSpec& spec,
                                                              const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(ParameterIndex made, ParameterIndex::FromModel(spec.model()));
  // Shared because std::function requires copyable captures.
  const auto index = std::make_shared<const ParameterIndex>(std::move(made));
  ShardStore::InitialVersion initial;
  if (spec.checkpoint().from().empty()) {
    initial.values = [index, seed = spec.seed()](int64_t first, std::span<float> out) {
      FillInitialValues(*index, seed, first, out);
      return absl::OkStatus();
    };
    return initial;
  }
  const auto read = [&]() -> absl::Status {
    // A later checkpoint of the same directory may appear meanwhile.
    CADRE_ASSIGN_OR_RETURN(const std::string path,
                           ResolveCheckpoint(spec.checkpoint().from(), files));
    CADRE_ASSIGN_OR_RETURN(SafetensorsFile opened, OpenWeights(path, spec.model(), files));
    initial.values = FillFrom(index, std::make_shared<SafetensorsFile>(std::move(opened)));
    if (absl::EndsWith(path, ".safetensors")) return absl::OkStatus();
    CADRE_ASSIGN_OR_RETURN(initial.states, InitialStates(path, index, spec.averaging(), files));
    initial.has_outer = !initial.states.empty() && OuterOptimizerOf(spec.averaging());
    return absl::OkStatus();
  };
  if (const absl::Status status = read(); !status.ok()) return Annotate(status, "checkpoint.from");
  return initial;
}

}  // namespace cadre
