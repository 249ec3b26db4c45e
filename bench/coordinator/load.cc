#include "bench/coordinator/load.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/protocol.h"
#include "base/status.h"
#include "bench/harness.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "model/validate.h"
#include "model/zoo_file.h"
#include "plan/plan.h"
#include "plan/search/planner.h"

namespace cadre {
namespace {

constexpr int kWorkersPerHost = 8;

}  // namespace

std::string LoadOptions::HostOf(int number) const {
  return absl::StrCat("host-", number % std::max(1, workers / kWorkersPerHost));
}

absl::StatusOr<std::vector<v1::RunSpec>> LoadOptions::Specs() const {
  std::vector<v1::RunSpec> specs;
  for (int run = 0; run < runs(); ++run) {
    CADRE_ASSIGN_OR_RETURN(RunSpecFile file, ReadRunSpecOrZoo("lenet"));
    v1::RunSpec& spec = file.spec;
    spec.set_name("load");
    spec.mutable_averaging()->set_every_steps(10);
    spec.mutable_stop()->Clear();
    spec.mutable_stop()->set_steps(2'000'000'000);
    v1::Cluster& cluster = *spec.mutable_cluster();
    cluster.set_groups(std::min(groups_per_run, groups() - run * groups_per_run));
    cluster.set_ranks_per_group(ranks_per_group);
    // The load is membership and rounds, not the search for plans.
    cluster.set_keep_plan(true);
    CADRE_RETURN_IF_ERROR(file.Refuse(FindProblems(spec)));
    specs.push_back(std::move(spec));
  }
  return specs;
}

Machine::Options LoadMachineOptions(const Planning& planning) {
  Machine::Options options;
  options.plan = [](const v1::RunSpec& spec, int ranks) { return MakePlan(spec, ranks); };
  options.planning = &planning;
  options.check_plan = [](const v1::RunSpec& spec, const v1::Plan& plan) -> absl::Status {
    CADRE_ASSIGN_OR_RETURN(const Graph graph, Graph::FromModel(spec.model()));
    return PlanFromProto(plan, graph, ParameterIndex::FromGraph(graph)).status();
  };
  options.validate = ValidateRunSpec;
  options.parameter_count = [](const v1::RunSpec& spec) -> uint64_t {
    const auto index = ParameterIndex::FromModel(spec.model());
    return index.ok() ? index->size() : 0;
  };
  options.protocol = kProtocol;
  options.max_live_runs = 1'000'000;
  return options;
}

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t HandledHeartbeats(const v1::StatusReply& page) {
  uint64_t handled = 0;
  const auto count = [&](const v1::MemberStatus& member) {
    const auto found = member.counters().find("heartbeats");
    if (found != member.counters().end()) handled += found->second;
  };
  for (const v1::MemberStatus& worker : page.workers()) count(worker);
  for (const v1::AggregatorStatus& aggregator : page.aggregators()) count(aggregator.member());
  return handled;
}

double Latencies::Percentile(double p) {
  if (seconds_.empty()) return 0;
  const double rank = std::ceil(p * static_cast<double>(seconds_.size()));
  const auto at = seconds_.begin() + std::max<std::ptrdiff_t>(0, std::lround(rank) - 1);
  std::nth_element(seconds_.begin(), at, seconds_.end());
  return *at;
}

nlohmann::ordered_json Latencies::ToJson() {
  return {{"count", seconds_.size()},
          {"p50_ms", Rounded(Percentile(0.5) * 1e3, 4)},
          {"p99_ms", Rounded(Percentile(0.99) * 1e3, 4)},
          {"max_ms", Rounded(Percentile(1) * 1e3, 4)}};
}

}  // namespace cadre
