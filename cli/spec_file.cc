#include "cli/spec_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "spec/data_check.h"
#include "spec/problem.h"
#include "spec/text.h"
#include "spec/validate.h"

namespace cadre {
namespace {

void Replace(const SpecFlags& flags, v1::Cluster& cluster) {
  if (flags.groups) cluster.set_groups(*flags.groups);
  if (flags.ranks) cluster.set_ranks_per_group(*flags.ranks);
  if (flags.aggregators) cluster.set_aggregators(*flags.aggregators);
}

void FillIn(v1::RunSpec& spec) {
  v1::Cluster& cluster = *spec.mutable_cluster();
  cluster.set_groups(std::max(1u, cluster.groups()));
  cluster.set_ranks_per_group(std::max(1u, cluster.ranks_per_group()));
  const bool averages = spec.averaging().every_steps() > 0;
  if (averages) cluster.set_aggregators(std::max(1u, cluster.aggregators()));
}

}  // namespace

absl::StatusOr<v1::RunSpec> LoadSpec(const std::string& path, const SpecFlags& flags) {
  CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpec(path));
  Replace(flags, *file.spec.mutable_cluster());
  if (flags.here) FillIn(file.spec);
  std::vector<Problem> problems = FindProblems(file.spec);
  if (flags.aggregators == 0u && file.spec.averaging().every_steps() > 0) {
    problems.push_back(
        {"cluster.aggregators", "is 0 by --aggregators, but averaging.every_steps is " +
                                    std::to_string(file.spec.averaging().every_steps()) +
                                    ": averaging needs at least 1 aggregator"});
  }
  if (problems.empty() && flags.here) problems = FindDataProblems(file.spec);
  CADRE_RETURN_IF_ERROR(file.Refuse(problems));
  return std::move(file.spec);
}

ExitCode FailSpec(const Console& console, const absl::Status& status) {
  const bool located = absl::IsInvalidArgument(status);
  console.err << (located ? "" : "cadre: ") << status.message() << std::endl;
  return kExitFailure;
}

}  // namespace cadre
