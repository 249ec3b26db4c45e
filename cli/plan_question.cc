#include "cli/plan_question.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spec/cluster_profile.h"
#include "spec/validate.h"

namespace cadre {
namespace {

// How the link is called that flags describe.
constexpr char kGivenKind[] = "given";

void Pin(const SpecFlags& flags, v1::Cluster& cluster) {
  if (!flags.mesh.empty()) {
    cluster.clear_model_ranks();
    cluster.clear_space_ranks();
    cluster.mutable_mesh()->Assign(flags.mesh.begin(), flags.mesh.end());
  }
  for (const v1::LayerPin& pin : flags.layers) {
    const auto same = [&](const v1::LayerPin& there) { return there.layer() == pin.layer(); };
    auto& layers = *cluster.mutable_layer();
    layers.erase(std::remove_if(layers.begin(), layers.end(), same), layers.end());
    *cluster.add_layer() = pin;
  }
}

// A plan may be asked for that no spec may have: more workers, and another batch than the schedule
// and the data are made for. The rest of the spec is checked as ever.
absl::StatusOr<v1::RunSpec> LoadFor(const PlanOptions& options) {
  SpecFlags flags = options.flags;
  const bool large = options.workers > kMostRanksPerGroup;
  flags.ranks = large ? 1 : options.workers;
  flags.here = false;
  if (large) {
    flags.mesh.clear();
    flags.model_ranks = flags.space_ranks = 0;
  }
  CADRE_ASSIGN_OR_RETURN(LoadedSpec loaded, LoadSpec(options.spec, flags));
  v1::Cluster& cluster = *loaded.spec.mutable_cluster();
  cluster.set_ranks_per_group(options.workers);
  if (options.batch) loaded.spec.set_batch_per_group(*options.batch);
  if (loaded.spec.micro_batches() > loaded.spec.batch_per_group()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.spec, ": micro_batches is ", loaded.spec.micro_batches(),
                     ", but a step has only ", loaded.spec.batch_per_group(), " samples"));
  }
  if (large) {
    cluster.set_model_ranks(options.flags.model_ranks.value_or(0));
    cluster.set_space_ranks(options.flags.space_ranks.value_or(0));
    Pin(options.flags, cluster);
  }
  // Whoever says how many ranks cut weights, and not how many cut rows, wants none of these.
  if (options.flags.model_ranks.value_or(0) > 0 && cluster.space_ranks() == 0) {
    cluster.set_space_ranks(1);
  }
  return std::move(loaded.spec);
}

absl::StatusOr<GroupMachine> MachineFor(const PlanOptions& options, const v1::RunSpec& spec,
                                        const Graph& graph) {
  GroupMachine machine;
  const int ranks = static_cast<int>(options.workers);
  if (options.profile) {
    CADRE_ASSIGN_OR_RETURN(const v1::ClusterProfile profile, ReadClusterProfile(*options.profile));
    CADRE_ASSIGN_OR_RETURN(machine, MachineOf(profile, spec.model(), graph, 0, ranks));
  } else if (options.link_given()) {
    const LinkProfile link = {.alpha = *options.alpha,
                              .beta = 1 / *options.bandwidth,
                              .gamma = options.gamma.value_or(0)};
    machine = UniformMachine(link, options.flops.value_or(0));
    machine.link_kind = kGivenKind;
  }
  if (options.memory) {
    const auto limit = static_cast<int64_t>(*options.memory);
    machine.memory_bytes = machine.memory_bytes > 0 ? std::min(machine.memory_bytes, limit) : limit;
  }
  return machine;
}

}  // namespace

HybridProblem PlanQuestion::paper_problem() const {
  const GroupMachine& machine = problem.machine;
  HybridProblem paper = {.network = &network,
                         .workers = problem.ranks,
                         .batch = static_cast<double>(problem.batch),
                         .flops = machine.flops,
                         .memory_bytes = static_cast<double>(machine.memory_bytes)};
  if (machine.link.known()) {
    paper.link = {machine.link.alpha, machine.link.beta * static_cast<double>(kBytesPerWord)};
  }
  // By what flags say to the digit; the inverse of an inverse is not.
  if (options.link_given()) {
    paper.link = WordLink::OfBandwidth(*options.alpha, *options.bandwidth);
  }
  return paper;
}

absl::StatusOr<std::unique_ptr<PlanQuestion>> AskPlan(const PlanOptions& options) {
  auto question = std::make_unique<PlanQuestion>();
  question->options = options;
  CADRE_ASSIGN_OR_RETURN(question->spec, LoadFor(options));
  CADRE_ASSIGN_OR_RETURN(question->graph, Graph::FromModel(question->spec.model()));
  question->index = ParameterIndex::FromGraph(question->graph);
  question->network = NetworkShapeOf(question->graph);
  CADRE_ASSIGN_OR_RETURN(GroupMachine machine,
                         MachineFor(options, question->spec, question->graph));
  CADRE_ASSIGN_OR_RETURN(question->problem,
                         ProblemOf(question->spec, question->graph, question->index,
                                   static_cast<int>(options.workers), std::move(machine)));
  PlanProblem& problem = question->problem;
  problem.strategy = question->strategy();
  if (options.bucket_elements) {
    problem.bucket_elements = static_cast<int64_t>(*options.bucket_elements);
  }
  if (!problem.machine.computes()) problem.overlap = false;
  return question;
}

}  // namespace cadre
