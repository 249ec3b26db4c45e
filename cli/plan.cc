#include "cli/plan.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/table.h"
#include "coordinator/plan/overlap.h"
#include "coordinator/plan/planner.h"
#include "spec/collective_cost.h"
#include "spec/graph.h"
#include "spec/parameter_index.h"
#include "spec/plan.h"
#include "spec/plan_collectives.h"

namespace cadre {
namespace {

// As many as a run spec may ask for.
constexpr uint32_t kMostWorkers = 4096;
constexpr char kGivenKind[] = "given";

// What every policy would cost in a step.
struct PolicyCost {
  v1::CollectivePolicy policy = v1::AUTO;
  // As Cadre does it, and with every bucket all-reduced instead.
  double seconds = 0;
  double all_reduced = 0;
};

// Everything that is printed.
struct Prospect {
  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
  Plan plan;
  std::vector<PolicyCost> policies;
  std::optional<StepTime> step;
};

LinkProfile LinkOf(const PlanOptions& options) {
  if (!options.bandwidth) return {};
  return {
      .alpha = *options.alpha, .beta = 1 / *options.bandwidth, .gamma = options.gamma.value_or(0)};
}

absl::StatusOr<Plan> PlanFor(const PlanOptions& options, const Prospect& prospect,
                             v1::CollectivePolicy policy) {
  v1::RunSpec spec = prospect.spec;
  spec.mutable_cluster()->set_collectives(policy);
  const LinkProfile link = LinkOf(options);
  return MakePlan(spec, static_cast<int>(options.workers), prospect.graph, prospect.index, link,
                  link.known() ? kGivenKind : "", options.bucket_elements);
}

absl::StatusOr<Prospect> Foresee(const PlanOptions& options, v1::RunSpec spec) {
  CADRE_ASSIGN_OR_RETURN(Graph graph, Graph::FromModel(spec.model()));
  ParameterIndex index = ParameterIndex::FromGraph(graph);
  Prospect prospect{.spec = std::move(spec), .graph = std::move(graph), .index = std::move(index)};
  CADRE_ASSIGN_OR_RETURN(prospect.plan,
                         PlanFor(options, prospect, prospect.spec.cluster().collectives()));
  if (!prospect.plan.link.known()) return prospect;
  for (const v1::CollectivePolicy policy : AllPolicies()) {
    CADRE_ASSIGN_OR_RETURN(const Plan plan, PlanFor(options, prospect, policy));
    prospect.policies.push_back(
        {.policy = policy,
         .seconds = CommunicationSeconds(plan, prospect.index),
         .all_reduced = AllReduceSeconds(plan, prospect.graph, prospect.index, policy)});
  }
  if (options.flops) {
    StepModel model = StepModelOf(
        prospect.plan, prospect.index,
        ComputeTimes(prospect.graph, static_cast<int>(options.workers),
                     static_cast<int64_t>(prospect.spec.batch_per_group()), *options.flops));
    const v1::Optimizer& optimizer = prospect.spec.optimizer();
    model.update_together = optimizer.clip_norm() > 0 || optimizer.has_lars();
    prospect.step = OverlappedStep(model);
    if (prospect.spec.cluster().overlap() == v1::OFF) {
      prospect.step->exposed += prospect.step->serial - prospect.step->seconds;
      prospect.step->seconds = prospect.step->serial;
    }
  }
  return prospect;
}

// --- for people ---

std::string Milliseconds(double seconds) { return absl::StrFormat("%.4f ms", 1e3 * seconds); }

std::string PoliciesTable(const Prospect& prospect) {
  Table table({"POLICY", "COMMUNICATION", "WERE ALL ALL-REDUCED"});
  for (const PolicyCost& cost : prospect.policies) {
    table.AddRow({std::string(PolicyName(cost.policy)), Milliseconds(cost.seconds),
                  Milliseconds(cost.all_reduced)});
  }
  return table.Text();
}

std::string StepText(const StepTime& step) {
  return absl::StrFormat(
      "step %s, of which %.1f %% waits for communication; %s if nothing overlapped\n",
      Milliseconds(step.seconds), step.seconds > 0 ? 100 * step.exposed / step.seconds : 0,
      Milliseconds(step.serial));
}

std::string ProspectText(const Prospect& prospect) {
  std::string text = PrintPlan(prospect.plan, prospect.graph, prospect.index);
  if (!prospect.plan.link.known()) {
    absl::StrAppend(&text, "\nno link given: --alpha and --bandwidth predict what it costs\n");
    return text;
  }
  absl::StrAppend(&text, "\ncommunication ",
                  Milliseconds(CommunicationSeconds(prospect.plan, prospect.index)),
                  " a step by policy ", PolicyName(prospect.spec.cluster().collectives()),
                  ", one bucket after the other\n");
  if (prospect.step) absl::StrAppend(&text, StepText(*prospect.step));
  absl::StrAppend(&text, "\n", PoliciesTable(prospect));
  return text;
}

// --- for scripts ---

std::string Array(const std::vector<std::string>& values) {
  return absl::StrCat("[", absl::StrJoin(values, ","), "]");
}

std::string Strings(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  for (const std::string& text : texts) values.push_back(JsonString(text));
  return Array(values);
}

std::string MeshJson(const Mesh& mesh) {
  JsonObject json;
  for (const Mesh::Axis& axis : mesh.axes()) json.Add(axis.name, static_cast<uint32_t>(axis.size));
  return json.Text();
}

std::string LayersJson(const Prospect& prospect) {
  std::vector<std::string> layers;
  for (int l = 0; l < prospect.graph.size(); ++l) {
    const LayerLayouts& layer = prospect.plan.layers[static_cast<size_t>(l)];
    JsonObject splits;
    for (const IndexSplit& split : layer.splits) splits.AddRaw(split.index, Strings(split.axes));
    layers.push_back(JsonObject()
                         .Add("layer", layer.name)
                         .Add("kind", LayerKindName(prospect.graph[l].kind))
                         .AddRaw("splits", splits.Text())
                         .Add("output", layer.output.ToString())
                         .Text());
  }
  return Array(layers);
}

std::string BucketJson(const Prospect& prospect, const Bucket& bucket) {
  std::vector<std::string> names;
  for (const int p : bucket.parameters) names.push_back(prospect.index[p].name);
  const LinkProfile& link = prospect.plan.link;
  const BucketCost cost = CostOf(prospect.plan, prospect.index, bucket, bucket.algorithm, link);
  return JsonObject()
      .AddRaw("parameters", Strings(names))
      .AddRaw("axes", Strings(bucket.axes))
      .AddRaw("same", Strings(bucket.same))
      .Add("algorithm", AlgorithmName(bucket.algorithm))
      .Add("bytes", static_cast<uint64_t>(cost.bytes))
      .AddRaw("seconds", link.known() ? JsonNumber(cost.seconds()) : "null")
      .Text();
}

std::string PoliciesJson(const Prospect& prospect, double PolicyCost::*cost) {
  JsonObject json;
  for (const PolicyCost& each : prospect.policies) json.Add(PolicyName(each.policy), each.*cost);
  return json.Text();
}

std::string StepJson(const StepTime& step) {
  return JsonObject()
      .Add("seconds", step.seconds)
      .Add("exposed_seconds", step.exposed)
      .Add("serial_seconds", step.serial)
      .Text();
}

std::string LinkJson(const Plan& plan) {
  return JsonObject()
      .Add("alpha", plan.link.alpha)
      .Add("beta", plan.link.beta)
      .Add("gamma", plan.link.gamma)
      .Add("kind", plan.link_kind)
      .Text();
}

std::string ProspectJson(const Prospect& prospect) {
  const Plan& plan = prospect.plan;
  const bool known = plan.link.known();
  std::vector<std::string> buckets;
  for (const Bucket& bucket : plan.buckets) buckets.push_back(BucketJson(prospect, bucket));
  const std::string seconds =
      known ? JsonNumber(CommunicationSeconds(plan, prospect.index)) : "null";
  return JsonObject()
      .Add("workers", static_cast<uint32_t>(plan.mesh.ranks()))
      .Add("batch", prospect.spec.batch_per_group())
      .AddRaw("mesh", MeshJson(plan.mesh))
      .Add("collectives", PolicyName(prospect.spec.cluster().collectives()))
      .AddRaw("link", known ? LinkJson(plan) : "null")
      .AddRaw("layers", LayersJson(prospect))
      .AddRaw("buckets", Array(buckets))
      .AddRaw("communication_seconds", seconds)
      .AddRaw("policies", known ? PoliciesJson(prospect, &PolicyCost::seconds) : "null")
      .AddRaw("policies_all_reduced",
              known ? PoliciesJson(prospect, &PolicyCost::all_reduced) : "null")
      .AddRaw("step", prospect.step ? StepJson(*prospect.step) : "null")
      .Text();
}

// --- what cannot be ---

absl::Status NotNegative(absl::string_view flag, std::optional<double> value) {
  if (!value || (std::isfinite(*value) && *value >= 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be 0 or more, not ", *value));
}

absl::Status Positive(absl::string_view flag, std::optional<double> value) {
  // The inverse is used, too.
  if (!value || (std::isfinite(*value) && *value > 0 && std::isfinite(1 / *value))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " must be above 0, not ", *value));
}

absl::Status Divides(absl::string_view flag, std::optional<uint32_t> ranks, uint32_t workers) {
  if (!ranks || *ranks == 0 || workers % *ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " is ", *ranks,
                                                 ", which does not divide the ", workers,
                                                 " workers of --workers"));
}

}  // namespace

absl::Status CheckPlanOptions(const PlanOptions& options) {
  if (options.workers == 0 || options.workers > kMostWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers must say how many workers the group has, 1 to ", kMostWorkers));
  }
  if (options.batch == 0u) return absl::InvalidArgumentError("--batch must be at least 1");
  CADRE_RETURN_IF_ERROR(NotNegative("alpha", options.alpha));
  CADRE_RETURN_IF_ERROR(Positive("bandwidth", options.bandwidth));
  CADRE_RETURN_IF_ERROR(NotNegative("gamma", options.gamma));
  CADRE_RETURN_IF_ERROR(Positive("flops", options.flops));
  if (options.alpha.has_value() != options.bandwidth.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.alpha ? "alpha" : "bandwidth", " needs --",
                     options.alpha ? "bandwidth" : "alpha", " beside it: both describe the link"));
  }
  if (!options.bandwidth && (options.gamma || options.flops)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", options.gamma ? "gamma" : "flops",
                     " needs --alpha and --bandwidth beside it: without a link nothing is "
                     "predicted"));
  }
  CADRE_RETURN_IF_ERROR(Divides("model_ranks", options.flags.model_ranks, options.workers));
  return Divides("space_ranks", options.flags.space_ranks, options.workers);
}

int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console) {
  SpecFlags flags = options.flags;
  flags.ranks = options.workers;
  flags.batch = options.batch;
  flags.here = false;
  absl::StatusOr<LoadedSpec> loaded = LoadSpec(options.spec, flags);
  if (!loaded.ok()) return FailSpec(console, loaded.status());
  const absl::StatusOr<Prospect> prospect = Foresee(options, std::move(loaded->spec));
  if (!prospect.ok()) return Fail(console, prospect.status());
  if (global.format == OutputFormat::kJson) {
    console.out << Indent(ProspectJson(*prospect)) << std::endl;
  } else {
    console.out << ProspectText(*prospect) << std::flush;
  }
  return kExitOk;
}

}  // namespace cadre
