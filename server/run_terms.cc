#include "server/run_terms.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/initial_value.h"
#include "spec/parameter_index.h"

namespace cadre {

absl::StatusOr<RunTerms> TermsOf(const v1::OpenRun& open) {
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
  terms.groups = std::max(1U, open.spec().cluster().groups());
  terms.ranks = std::max(1U, open.spec().cluster().ranks_per_group());
  for (const Parameter& parameter : index.parameters()) {
    terms.tensor_begin.push_back(static_cast<uint64_t>(parameter.offset));
  }
  terms.tensor_begin.push_back(static_cast<uint64_t>(index.size()));
  terms.generations.insert(open.generations().begin(), open.generations().end());
  return terms;
}

absl::StatusOr<ShardStore::Fill> InitialModel(const v1::RunSpec& spec) {
  CADRE_ASSIGN_OR_RETURN(ParameterIndex made, ParameterIndex::FromModel(spec.model()));
  // Shared because std::function must be copyable.
  const auto index = std::make_shared<const ParameterIndex>(std::move(made));
  return [index, seed = spec.seed()](uint64_t first, std::span<float> out) {
    FillInitialValues(*index, seed, static_cast<int64_t>(first), out);
  };
}

}  // namespace cadre
