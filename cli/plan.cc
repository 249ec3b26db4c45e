#include "cli/plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/plan_render.h"
#include "cli/spec_file.h"
#include "model/validate.h"
#include "plan/cluster_profile.h"
#include "plan/cost/epochs_table.h"
#include "plan/cost/time_to_accuracy.h"
#include "plan/report/plan_report.h"

namespace cadre {
namespace {

// LoadSpec refuses pins of more ranks than a run may have; these are set after it.
void Pin(const SpecFlags& flags, v1::Cluster& cluster) {
  cluster.set_model_ranks(flags.model_ranks.value_or(0));
  cluster.set_space_ranks(flags.space_ranks.value_or(0));
  if (!flags.mesh.empty()) {
    cluster.clear_model_ranks();
    cluster.clear_space_ranks();
    cluster.mutable_mesh()->Assign(flags.mesh.begin(), flags.mesh.end());
  }
  for (const v1::LayerPin& pin : flags.layers) {
    auto& layers = *cluster.mutable_layer();
    layers.erase(std::remove_if(layers.begin(), layers.end(),
                                [&](const auto& other) { return other.layer() == pin.layer(); }),
                 layers.end());
    *cluster.add_layer() = pin;
  }
}

// A plan may have more workers than a run, and a batch for which neither schedule nor data are
// made. All other rules of LoadSpec apply.
absl::StatusOr<v1::RunSpec> LoadFor(const PlanOptions& options) {
  SpecFlags flags = options.flags;
  const bool large = options.workers > kMaxRanksPerGroup;
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
  if (large) Pin(options.flags, cluster);
  // --model-ranks without --space-ranks means no rows are split.
  if (options.flags.model_ranks.value_or(0) > 0 && cluster.space_ranks() == 0) {
    cluster.set_space_ranks(1);
  }
  return std::move(loaded.spec);
}

absl::Status ReadEpochs(const std::string& path, PlanRequest& request) {
  CADRE_ASSIGN_OR_RETURN(request.epochs, ReadEpochsTable(path));
  CADRE_RETURN_IF_ERROR(Annotate(EpochsCurve::FromTable(*request.epochs).status(), path));
  if (request.samples) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--epochs requires --samples: the run does not state the samples of an epoch");
}

}  // namespace

absl::StatusOr<PlanRequest> ReadPlanRequest(const PlanOptions& options) {
  PlanRequest request{.workers = static_cast<int>(options.workers),
                      .flops = options.flops.value_or(0),
                      .strategy = options.strategy.value_or(Strategy::kAuto),
                      .compare = options.compare,
                      .sensitivity = options.sensitivity};
  CADRE_ASSIGN_OR_RETURN(request.spec, LoadFor(options));
  if (options.link_given()) {
    request.link = {.alpha = *options.alpha,
                    .bandwidth = *options.bandwidth,
                    .gamma = options.gamma.value_or(0)};
  }
  if (options.profile) {
    CADRE_ASSIGN_OR_RETURN(request.profile, ReadClusterProfile(*options.profile));
  }
  if (options.memory) request.memory_bytes = *options.memory;
  if (options.bucket_elements) request.bucket_elements = *options.bucket_elements;
  if (options.groups) request.max_groups = *options.groups;
  if (options.samples) {
    request.samples = *options.samples;
  } else if (request.spec.data().has_synthetic()) {
    request.samples = request.spec.data().synthetic().train_samples();
  }
  if (options.epochs) CADRE_RETURN_IF_ERROR(ReadEpochs(*options.epochs, request));
  return request;
}

int ShowPlan(const GlobalOptions& global, const PlanOptions& options, const Console& console) {
  absl::StatusOr<PlanRequest> request = ReadPlanRequest(options);
  if (!request.ok()) return FailSpec(console, request.status());
  const auto question = MakePlanQuestion(*std::move(request));
  if (!question.ok()) return FailSpec(console, question.status());
  const absl::StatusOr<PlanReport> report = BuildPlanReport(**question);
  if (!report.ok()) return Fail(console, report.status());
  Print(*report, global, console);
  return kExitOk;
}

}  // namespace cadre
