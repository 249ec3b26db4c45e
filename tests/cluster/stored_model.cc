#include "tests/cluster/stored_model.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/status.h"
#include "model/parameter_index.h"
#include "server/shard_store.h"
#include "tests/base/temporary_folder.h"

namespace cadre::testing {

absl::StatusOr<std::vector<float>> ReadStoredModel(const std::string& folder,
                                                   const v1::StatusReply& status,
                                                   const v1::RunSpec& spec) {
  CADRE_ASSIGN_OR_RETURN(const ParameterIndex index, ParameterIndex::FromModel(spec.model()));
  // NaN where no shard has a value.
  std::vector<float> weights(index.size(), std::numeric_limits<float>::quiet_NaN());
  for (const v1::AggregatorStatus& aggregator : status.aggregators()) {
    const std::string& name = aggregator.member().name();
    // The aggregator has locked its own folder, and may remove other files.
    const TemporaryFolder copy;
    const v1::RunStatus& run = status.runs(0);
    std::filesystem::create_directory(absl::StrCat(copy.path(), "/", run.run()));
    for (const std::string& file :
         {std::string(".identity"), absl::StrCat(run.run(), "/version-", run.version())}) {
      std::filesystem::copy(absl::StrCat(folder, "/", name, "/", file),
                            absl::StrCat(copy.path(), "/", file));
    }
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<ShardStore> store,
                           ShardStore::Open(PosixFileSystem(), copy.path(), name));
    CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<VersionReader> shard,
                           store->versions().Open(run.run(), run.version()));
    char* const begin = reinterpret_cast<char*>(weights.data() + shard->span().begin);
    CADRE_RETURN_IF_ERROR(
        shard->Read(shard->span().begin, {begin, shard->span().size() * sizeof(float)}));
  }
  return weights;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    // Comparisons with NaN are false; NaN must not count as equal.
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace cadre::testing
